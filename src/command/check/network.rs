// SPDX-License-Identifier: GPL-2.0-or-later
//! Says whether the network of jobs is counted and bounded here, and on which interfaces a bound delays what others would refuse.

use jobfence::config::{Loaded, Mode};
use jobfence::host::Host;

use super::rows::Rows;
use super::verdict::Verdict;
use crate::network::{self, NetworkDevice};

const ROW: &str = "network";

/// Says it, if some job is to be counted or bounded. `is_theirs`: jobs are in cgroups of the scheduler's own. That the programs are
/// attached is what the trial finds.
pub fn say(rows: &mut Rows, host: &Host, loaded: &Loaded, is_theirs: bool, verdict: &mut Verdict) {
    let is_bounded = network::is_bounded(loaded);
    let is_counted = loaded.config.network_accounting && loaded.config.mode != Mode::Off;
    if !is_bounded && !is_counted {
        return;
    }
    let theirs = is_theirs.then(|| {
        "jobs are in the scheduler's own cgroups, and jobfence's programs see only those below its own directory"
            .to_owned()
    });
    if let Some(why) = network::obstacle(host).map(|error| error.to_string()).or(theirs) {
        if is_counted {
            rows.remark(ROW, format!("NetworkAccounting: nothing is counted, since {why}"));
        }
        if is_bounded {
            rows.fault(ROW, format!("NetworkMax: {why}"));
            verdict.no(format!("a job would be REFUSED here: its NetworkMax would not hold, since {why}"));
        }
        return;
    }
    if rows.are_wanted()
        && nix::unistd::geteuid().is_root()
        && let Err(error) = network::try_programs()
    {
        rows.fault(ROW, format!("the kernel does not take the programs that count and bound: {error}"));
    }
    if is_counted {
        match loaded.config.sample_interval {
            Some(_) => rows.fact(ROW, "what each job sends and receives is counted (NetworkAccounting)"),
            None => rows.remark(ROW, "NetworkAccounting: nothing reads what is counted, since SampleInterval is never"),
        }
    }
    if is_bounded && rows.are_wanted() {
        match NetworkDevice::all() {
            Ok(devices) => bounded(rows, &devices),
            Err(why) => rows.remark(ROW, format!("NetworkMax: cannot {why}")),
        }
    }
}

/// Where bounds delay packets, and where they refuse them.
fn bounded(rows: &mut Rows, devices: &[NetworkDevice]) {
    let mut has_said_how = false;
    for device in devices.iter().filter(|device| !device.is_loopback && device.has_route) {
        let name = &device.name;
        if device.keeps_time {
            rows.fact(ROW, format!("NetworkMax: what a job sends too fast by {name} waits there (fq)"));
            continue;
        }
        let has = if device.qdisc.is_empty() { "no queue".to_owned() } else { format!("the qdisc {}", device.qdisc) };
        let how = if std::mem::replace(&mut has_said_how, true) { "" } else { HOW };
        rows.remark(
            ROW,
            format!(
                "NetworkMax: {name} has {has}: what a job sends too fast is refused there and sent again by TCP, so that a job may \
                 stay below its bound{how}"
            ),
        );
    }
}

/// Not by a command for an interface: that would take its queues away, and is gone after a reboot.
const HOW: &str = "; where the hardware's interface has fq it waits instead: set net.core.default_qdisc=fq (sysctl.d(5)) for interfaces \
                   that come up later";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::rows::Form;

    #[test]
    fn an_interface_that_cannot_wait_is_a_remark() {
        let of = |name: &str, qdisc: &str| NetworkDevice {
            name: name.to_owned(),
            number: 2,
            is_loopback: name == "lo",
            has_route: name != "veth0",
            qdisc: qdisc.to_owned(),
            keeps_time: qdisc == "fq",
        };
        let text = |devices: &[NetworkDevice]| {
            let mut rows = Rows::new(Form::Text);
            bounded(&mut rows, devices);
            rows.text(false)
        };
        let said = text(&[of("lo", ""), of("eth0", "fq"), of("eth1", "fq_codel"), of("veth0", "")]);
        assert!(said.contains("by eth0 waits there (fq)"), "{said}");
        assert!(said.contains("eth1 has the qdisc fq_codel") && said.contains("default_qdisc=fq"), "{said}");
        assert!(!said.contains("veth0") && !said.contains("lo "), "{said}");
        assert!(text(&[of("bond0", "")]).contains("bond0 has no queue"));
    }
}
