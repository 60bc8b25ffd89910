// SPDX-License-Identifier: GPL-2.0-or-later
//! gres.conf: in which order the GPUs of a node are. Comments, as `#! gpu:2`, are slurm.conf's `Gres=`; `~` stands for the slash in
//! the path of a device, since no file of this machine's is included.

use jobfence::schedulers::slurm::conf::Lines;
use jobfence::schedulers::slurm::gres::GresConf;
use jobfence::sys::nvidia::Gpu;

use super::slurm_conf::within;
use super::{files, is_readable, text};

pub const WORDS: &[&str] = &[
    "#! gpu:2\n",
    "#! gpu:a:1,gpu:b:1\n",
    "NodeName=n[1-4] ",
    "Name=gpu Type=a ",
    "File=~dev~nvidia[2-3]\n",
    "MultipleFiles=",
    "AutoDetect=nvml\n",
    "AutoDetect=off",
    "Count=2",
    ",~dev~nvidia0",
    "\\\n",
    "Include gres.conf\n",
    "[0-1",
];

pub fn run(data: &[u8]) {
    let data = within(data);
    let lines = text(&data);
    let includes = lines.to_ascii_lowercase().contains("include");
    let slashes = if includes { lines.clone().into_owned() } else { lines.replace('~', "/") };
    let file = files::put("gres/gres.conf", slashes.as_bytes());
    let gres_conf = match GresConf::from_lines(&Lines::read(&file), "n2") {
        Ok(gres_conf) => gres_conf,
        Err(why) => return is_readable(&why),
    };
    let gres = lines.lines().find_map(|line| line.strip_prefix("#! "));
    let gpu = |(minor, at)| Gpu { address: [0, at, 0, 0], minor, uuid: None };
    let driver: Vec<Gpu> = [2, 0, 1].into_iter().zip(0..).map(gpu).collect();
    for (gres, driver) in [(gres, &driver[..]), (None, &driver[..]), (gres, &[])] {
        match gres_conf.devices(gres, driver) {
            Ok(devices) => assert!(devices.iter().all(|path| path.starts_with('/')), "{devices:?}"),
            Err(why) => is_readable(&why),
        }
    }
}
