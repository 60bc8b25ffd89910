// SPDX-License-Identifier: GPL-2.0-or-later
//! Which GPUs belong to the job, from what slurmd tells its prolog.
//!
//! `SLURM_JOB_GPUS` has Slurm's own numbers (`gres_common_prep_set_env`, in 22.05 `gres_common_epilog_set_env`, in
//! src/plugins/gres/common/gres_common.c). They are positions in an order: see [`crate::schedulers::slurm::gres`]. Since 25.11, if Slurm
//! detected the GPUs itself, `CUDA_VISIBLE_DEVICES` has the UUIDs of the same GPUs, which need no order; for MIG in every release.
//!
//! The numbers are this node's if slurmd finds this node's position among the job's nodes, and not among those of a step
//! (`_rpc_launch_tasks`, `_rpc_prolog`, src/slurmd/slurmd/req.c).

use std::path::{Path, PathBuf};

use crate::facts::Gpus;
use crate::hostlist::{HostList, Repeated};
use crate::record::job::{is_device, parse_gpus};
use crate::schedulers::slurm::conf::{self, Lines};
use crate::schedulers::slurm::gres::GresConf;
use crate::sys::dir::Dir;
use crate::sys::nvidia;

/// The files from which GPUs are found.
#[derive(Debug)]
pub struct GpuSources<'a> {
    /// slurmd's own slurm.conf; gres.conf is beside it (`get_extra_conf_path`).
    pub slurm_conf: Option<PathBuf>,
    /// `/proc`.
    pub proc: &'a Dir,
    /// The directory that contains `dev`.
    pub root: &'a Path,
}

/// Finds the job's GPUs.
pub fn find(env: &dyn Fn(&str) -> Option<String>, places: &GpuSources<'_>) -> Gpus {
    let Some(said) = env("SLURM_JOB_GPUS").filter(|said| !said.is_empty()) else { return Gpus::None };
    let Some(positions) = parse_gpus(&said) else {
        return Gpus::Unknown("SLURM_JOB_GPUS is not a list of numbers".to_owned());
    };
    let visible = env("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let visible: Vec<&str> = visible.split(',').collect();
    if visible.iter().any(|name| name.starts_with("MIG-")) {
        return Gpus::Unknown(INSTANCES.to_owned());
    }
    let Some(slurm_conf) = &places.slurm_conf else { return Gpus::Unknown(NO_SLURM_CONF.to_owned()) };
    let lines = Lines::read(slurm_conf);
    if let Err(why) = are_this_nodes(env, &lines) {
        return Gpus::Unknown(why);
    }
    let Some(driver) = nvidia::gpus(places.proc) else {
        return Gpus::Positions(positions, STRANGE_DRIVER.to_owned());
    };
    if let Some(devices) = by_uuid(&visible, &driver).filter(|devices| devices.len() == positions.len()) {
        return Gpus::Devices(positions.into_iter().zip(devices).collect());
    }
    in_order(positions, slurm_conf, &lines, &env("SLURMD_NODENAME").unwrap_or_default(), &driver, places)
}

/// The GPUs of a node with these Slurm numbers.
pub fn with_numbers(positions: Vec<u32>, node: &str, places: &GpuSources<'_>) -> Gpus {
    match (&places.slurm_conf, nvidia::gpus(places.proc)) {
        _ if positions.is_empty() => Gpus::None,
        (None, _) => Gpus::Positions(positions, NO_SLURM_CONF.to_owned()),
        (_, None) => Gpus::Positions(positions, STRANGE_DRIVER.to_owned()),
        (Some(file), Some(driver)) => in_order(positions, file, &Lines::read(file), node, &driver, places),
    }
}

const NO_SLURM_CONF: &str = "slurm.conf is not found";
const STRANGE_DRIVER: &str = "what is in /proc/driver/nvidia is not understood";
const INSTANCES: &str = "a GPU of this node is divided into instances (MIG), which have one device together";

/// Whether the numbers are this node's, and not another node's of the job.
fn are_this_nodes(env: &dyn Fn(&str) -> Option<String>, slurm_conf: &Lines) -> Result<(), String> {
    let nodes_of_job = env("SLURM_JOB_CPUS_PER_NODE").and_then(|cpus| Repeated::parse(&cpus)).map(|cpus| cpus.count());
    match nodes_of_job {
        Some(1) => return Ok(()),
        Some(_) => {}
        None => return Err("slurmd has not said how many nodes the job has".to_owned()),
    }
    let flags = slurm_conf.last("PrologFlags").map(|flags| flags.value.to_ascii_lowercase()).unwrap_or_default();
    let has = |flag: &str| flags.split(',').any(|one| one.trim() == flag);
    // The flags with which every release calls the prolog when the job is allocated (`prolog_str2flags`).
    let at_allocation = ["alloc", "contain", "x11", "runinjob", "forcerequeueonfail"].iter().any(|flag| has(flag));
    let nodes = env("SLURM_JOB_NODELIST").or_else(|| env("SLURM_NODELIST")).and_then(|nodes| HostList::parse(&nodes));
    let is_jobs = nodes.is_some_and(|nodes| {
        Some(nodes.count()) == nodes_of_job && env("SLURMD_NODENAME").is_some_and(|node| nodes.contains(&node))
    });
    if !at_allocation || !is_jobs {
        let sign = "the numbers of GPUs that slurmd says can be another node's";
        return Err(format!("{sign}; PrologFlags=Alloc in slurm.conf makes them certain"));
    }
    // Before 25.11, the first release that exports the SLUID, RunInJob looks up the job's n-th node in data about this node alone
    // (`_run_prolog_epilog`, src/slurmd/slurmstepd/mgr.c).
    if has("runinjob") && env("SLURM_JOB_SLUID").is_none() {
        return Err(
            "before Slurm 25.11 PrologFlags=RunInJob says other numbers of GPUs on a job's second node".to_owned()
        );
    }
    Ok(())
}

/// The devices of these GPUs, if all are named by UUID.
fn by_uuid(visible: &[&str], driver: &[nvidia::Gpu]) -> Option<Vec<String>> {
    let device = |uuid: &&str| {
        let mut known = driver.iter().filter(|gpu| gpu.uuid.as_deref() == Some(*uuid));
        let found = known.next()?;
        known.next().is_none().then(|| found.device())
    };
    visible.iter().map(device).collect()
}

/// The device of each GPU of a node, in Slurm's order, or why the order is not certain.
pub fn of_node(node: &str, places: &GpuSources<'_>) -> Result<Vec<String>, String> {
    let file = places.slurm_conf.as_ref().ok_or(NO_SLURM_CONF)?;
    let driver = nvidia::gpus(places.proc).ok_or(STRANGE_DRIVER)?;
    let devices = counted(file, &Lines::read(file), node, &driver, places)?.ok_or(INSTANCES)?;
    are_there(&devices, places.root).map(|()| devices)
}

/// The GPUs at these positions in Slurm's order.
fn in_order(
    positions: Vec<u32>,
    slurm_conf: &Path,
    lines: &Lines,
    node: &str,
    driver: &[nvidia::Gpu],
    places: &GpuSources<'_>,
) -> Gpus {
    let counted = match counted(slurm_conf, lines, node, driver, places) {
        Ok(None) => return Gpus::Unknown(INSTANCES.to_owned()),
        Ok(Some(devices)) => Ok(devices),
        Err(why) => Err(why),
    };
    match counted.and_then(|devices| devices_at(&positions, &devices, places.root)) {
        Ok(devices) => Gpus::Devices(positions.into_iter().zip(devices).collect()),
        Err(why) => Gpus::Positions(positions, why),
    }
}

/// The GPUs that Slurm counts on the node, in its order. `None`: one of them is divided into instances.
fn counted(
    slurm_conf: &Path,
    lines: &Lines,
    node: &str,
    driver: &[nvidia::Gpu],
    places: &GpuSources<'_>,
) -> Result<Option<Vec<String>>, String> {
    let gres_conf = GresConf::from_lines(&Lines::read(&slurm_conf.with_file_name("gres.conf")), node)?;
    if gres_conf.can_count_instances() && nvidia::has_instances(places.proc).unwrap_or(true) {
        return Ok(None);
    }
    let gres = conf::of_node(lines, node, "Gres").map(|found| found.value.unwrap_or_default());
    gres_conf.devices(gres, driver).map(Some)
}

/// Checks that all are devices: Slurm skips a file that is no device, which shifts its numbers.
fn are_there(devices: &[String], root: &Path) -> Result<(), String> {
    match devices.iter().find(|path| !is_device(path) || !exists(root, path)) {
        Some(none) => Err(format!("{none} is a GPU in gres.conf, and no device here")),
        None => Ok(()),
    }
}

fn devices_at(positions: &[u32], devices: &[String], root: &Path) -> Result<Vec<String>, String> {
    are_there(devices, root)?;
    let device = |position: &u32| usize::try_from(*position).ok().and_then(|position| devices.get(position)).cloned();
    positions.iter().map(|position| device(position).ok_or(*position)).collect::<Result<_, _>>().map_err(|position| {
        format!(
            "Slurm has given the job the GPU {position} of this node, and gres.conf and slurm.conf have {}",
            devices.len()
        )
    })
}

fn exists(root: &Path, path: &str) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(root.join(path.trim_start_matches('/')))
        .is_ok_and(|metadata| metadata.file_type().is_char_device() || metadata.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A node `n2` with these files: `dev/...` are devices, as links to a real one; a GPU of the driver is `ADDRESS MINOR UUID`.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new(slurm_conf: &str, gres_conf: &str, devices: &[&str], driver: &[&str]) -> Self {
            let temp = tempfile::tempdir().unwrap();
            let at = |path: &str| temp.path().join(path);
            fs::create_dir_all(at("proc")).unwrap();
            fs::create_dir_all(at("dev/dri")).unwrap();
            fs::write(at("slurm.conf"), slurm_conf).unwrap();
            fs::write(at("gres.conf"), gres_conf).unwrap();
            for device in devices {
                std::os::unix::fs::symlink("/dev/zero", at("dev").join(device)).unwrap();
            }
            for gpu in driver {
                let [address, minor, uuid] = gpu.split(' ').collect::<Vec<_>>().try_into().unwrap();
                let dir = at("proc/driver/nvidia/gpus").join(address);
                fs::create_dir_all(&dir).unwrap();
                let text = format!("Model: \t\t A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
                fs::write(dir.join("information"), text).unwrap();
            }
            Self(temp)
        }

        fn find(&self, env: &[(&str, &str)]) -> Gpus {
            let get = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let proc = Dir::open(self.0.path().join("proc")).unwrap();
            let slurm_conf = Some(self.0.path().join("slurm.conf"));
            find(&get, &GpuSources { slurm_conf, proc: &proc, root: self.0.path() })
        }
    }

    /// What slurmd tells the prolog of a one-node job with these GPUs.
    fn alone<'a>(gpus: &'a str, visible: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("SLURMD_NODENAME", "n2"),
            ("SLURM_NODELIST", "n2"),
            ("SLURM_JOB_CPUS_PER_NODE", "4"),
            ("SLURM_JOB_GPUS", gpus),
            ("CUDA_VISIBLE_DEVICES", visible),
        ]
    }

    fn devices(pairs: &[(u32, &str)]) -> Gpus {
        Gpus::Devices(pairs.iter().map(|(position, path)| (*position, (*path).to_owned())).collect())
    }

    /// Whether the numbers are certain, and why the devices are not.
    fn why(gpus: Gpus) -> (bool, String) {
        match gpus {
            Gpus::Unknown(why) => (false, why),
            Gpus::Positions(_, why) => (true, why),
            Gpus::None | Gpus::Devices(_) | Gpus::Chosen(_) => panic!("{gpus:?}"),
        }
    }

    const ALL: &[&str] = &["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"];
    /// Their minors are not in the order of their addresses.
    const CROSSED: &[&str] =
        &["0000:3b:00.0 2 GPU-c", "0000:5e:00.0 3 GPU-d", "0000:86:00.0 0 GPU-a", "0000:af:00.0 1 GPU-b"];
    const FOUR: &str = "NodeName=n[1-2] CPUs=4 Gres=gpu:4\n";

    #[test]
    fn a_job_without_gpus_asks_for_no_file() {
        let node = Node::new("", "", &[], &[]);
        assert_eq!(node.find(&[]), Gpus::None);
        assert_eq!(node.find(&alone("", "")), Gpus::None);
    }

    #[test]
    fn files_of_gres_conf() {
        let node = Node::new("NodeName=n2 Gres=gpu:2\n", "Name=gpu File=/dev/nvidia[2-3]\n", ALL, &[]);
        // For each of these, the X of the device differs from Slurm's number.
        assert_eq!(node.find(&alone("0", "0")), devices(&[(0, "/dev/nvidia2")]));
        assert_eq!(node.find(&alone("0,1", "0,1")), devices(&[(0, "/dev/nvidia2"), (1, "/dev/nvidia3")]));
        let (certain, reason) = why(node.find(&alone("2", "2")));
        assert!(certain && reason.contains("the GPU 2 of this node, and gres.conf and slurm.conf have 2"), "{reason}");
        // A file that is no device is not counted.
        let node = Node::new("NodeName=n2 Gres=gpu:2\n", "Name=gpu File=/dev/nvidia[3-4]\n", ALL, &[]);
        let (certain, reason) = why(node.find(&alone("0", "0")));
        assert!(certain && reason.contains("/dev/nvidia4"), "{reason}");
        let node = Node::new("NodeName=n2 Gres=gpu:1\n", "", ALL, &[]);
        assert!(why(node.find(&alone("0", "0"))).1.contains("name no device"));
    }

    #[test]
    fn detected_gpus() {
        let nvml = Node::new(FOUR, "AutoDetect=nvml\n", ALL, CROSSED);
        // Before 25.11 by the order of the addresses; since then by UUID.
        assert_eq!(nvml.find(&alone("0,3", "0,3")), devices(&[(0, "/dev/nvidia2"), (3, "/dev/nvidia1")]));
        assert_eq!(nvml.find(&alone("0,3", "GPU-c,GPU-b")), devices(&[(0, "/dev/nvidia2"), (3, "/dev/nvidia1")]));
        let nvidia = Node::new(FOUR, "AutoDetect=nvidia\n", ALL, CROSSED);
        assert_eq!(nvidia.find(&alone("0,3", "0,3")), devices(&[(0, "/dev/nvidia0"), (3, "/dev/nvidia3")]));
        assert_eq!(nvidia.find(&alone("0,3", "GPU-a,GPU-d")), devices(&[(0, "/dev/nvidia0"), (3, "/dev/nvidia3")]));
        // The UUIDs decide where no order does.
        let full = Node::new(FOUR, "AutoDetect=full\n", ALL, CROSSED);
        assert!(why(full.find(&alone("0", "0"))).1.contains("AutoDetect=full"));
        assert_eq!(full.find(&alone("1", "GPU-d")), devices(&[(1, "/dev/nvidia3")]));
        // A UUID that the driver does not list, or a list that does not have one for each GPU, does not count.
        for visible in ["GPU-e", "GPU-c,GPU-d", "GPU-c,1"] {
            assert!(why(full.find(&alone("0", visible))).1.contains("AutoDetect=full"), "{visible}");
        }
        let twice = ["0000:3b:00.0 1 GPU-a", "0000:5e:00.0 0 GPU-a"];
        let twice = Node::new("NodeName=n2 Gres=gpu:2\n", "AutoDetect=full\n", ALL, &twice);
        assert!(why(twice.find(&alone("0", "GPU-a"))).0);
        let strange = Node::new(FOUR, "AutoDetect=nvml\n", ALL, &["3b 1 GPU-a"]);
        assert!(why(strange.find(&alone("0", "GPU-a"))).1.contains("/proc/driver/nvidia"));
    }

    #[test]
    fn instances_are_no_gpus() {
        let node = Node::new(FOUR, "AutoDetect=nvml\n", ALL, CROSSED);
        for visible in ["MIG-GPU-a/1/0", "GPU-c,MIG-1"] {
            let (certain, reason) = why(node.find(&alone("0", visible)));
            assert!(!certain && reason.contains("MIG"), "{reason}");
        }
        fs::create_dir_all(node.0.path().join("proc/driver/nvidia/capabilities/gpu2/mig/gi1")).unwrap();
        let (certain, reason) = why(node.find(&alone("0", "0")));
        assert!(!certain && reason.contains("MIG"), "{reason}");
        // An undivided GPU has a UUID of its own; and where files are named, nothing is detected.
        assert_eq!(node.find(&alone("0", "GPU-d")), devices(&[(0, "/dev/nvidia3")]));
        fs::write(node.0.path().join("gres.conf"), "Name=gpu File=/dev/nvidia[3,1,2,0]\n").unwrap();
        assert_eq!(node.find(&alone("1", "1")), devices(&[(1, "/dev/nvidia1")]));
    }

    #[test]
    fn numbers_that_can_be_another_nodes_are_nobodys() {
        let gres_conf = "NodeName=n2 Name=gpu File=/dev/nvidia[3,2]\n";
        let with = |flags: &str| Node::new(&format!("{FOUR}{flags}\n"), gres_conf, ALL, &[]);
        let found = devices(&[(0, "/dev/nvidia3")]);
        let certain = "PrologFlags=Alloc";
        for (flags, cpus, nodes, more, reason) in [
            // The first step came to this node alone, or to all of them in another order.
            ("", "4(x2)", "n2", "", certain),
            ("", "4(x2)", "n[1-2]", "", certain),
            ("PrologFlags=Serial,NoHold,DeferBatch", "4(x2)", "n[1-2]", "", certain),
            ("PrologFlags=Alloc", "4(x2)", "n2", "", certain),
            ("PrologFlags=Alloc", "4(x2)", "n[1-3]", "", certain),
            ("PrologFlags=Alloc", "4(x2)", "n[3-4]", "", certain),
            ("PrologFlags=Alloc", "4(x2)", "", "", certain),
            ("PrologFlags=Alloc", "", "n2", "", "how many nodes"),
            ("PrologFlags=RunInJob", "4(x2)", "n[1-2]", "", "RunInJob"),
            ("PrologFlags=Alloc", "4(x2)", "n[1-2]", "", ""),
            ("PrologFlags=nohold,CONTAIN", "4,2", "n[1-2]", "", ""),
            ("PrologFlags=X11", "4(x2)", "n[1-2]", "", ""),
            ("PrologFlags=RunInJob", "4(x2)", "n[1-2]", "s1", ""),
            ("PrologFlags=RunInJob", "4", "n2", "", ""),
            ("", "4", "n2", "", ""),
        ] {
            let env = [
                ("SLURMD_NODENAME", "n2"),
                ("SLURM_JOB_NODELIST", nodes),
                ("SLURM_JOB_CPUS_PER_NODE", cpus),
                ("SLURM_JOB_GPUS", "0"),
                ("SLURM_JOB_SLUID", more),
            ];
            let env: Vec<_> = env.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            let gpus = with(flags).find(&env);
            if reason.is_empty() {
                assert_eq!(gpus, found, "{flags} {cpus} {nodes}");
            } else {
                let (certain, why) = why(gpus);
                assert!(!certain && why.contains(reason), "{flags} {cpus} {nodes}: {why}");
            }
        }
        let strange = with("").find(&alone("GPU-1", ""));
        assert!(!why(strange).0);
    }
}
