// SPDX-License-Identifier: GPL-2.0-or-later
//! The network interfaces of this host, and what the programs must know of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::program::device;
use super::qdiscs;

/// Where the kernel has them.
const CLASS: &str = "/sys/class/net";

/// Where the kernel has its routes.
const ROUTES: &str = "/proc/net";

/// `ARPHRD_LOOPBACK`.
const LOOPBACK_TYPE: &str = "772";

/// The qdisc that sends a packet when the time has come that the packet carries, whatever the program has to do with it.
const KEEPS_TIME: &str = "fq";

/// The most interfaces that are counted apart. Those of containers come and go, and no job's socket sends by one.
const MOST: usize = 128;

/// How many interfaces are on top of each other: a VLAN on a bond of two ports.
const DEEPEST: u32 = 4;

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkDevice {
    pub name: String,
    /// Its number, which packets carry.
    pub number: u32,
    pub is_loopback: bool,
    /// Whether a route leads to it: by others, nothing is sent by the host itself.
    pub has_route: bool,
    /// What queues its packets. Empty: nothing does, and those of an interface below it may be queued.
    pub qdisc: String,
    /// Whether it, or all interfaces below it, send packets at their time.
    pub keeps_time: bool,
}

impl NetworkDevice {
    /// All of this network namespace, the more important first.
    pub fn all() -> Result<Vec<Self>, String> {
        let qdiscs =
            qdiscs::all().map_err(|errno| format!("ask for the qdiscs of the network's interfaces: {errno}"))?;
        of_class(Path::new(CLASS), &qdiscs::by_interface(&qdiscs), &routed(Path::new(ROUTES)))
    }

    /// What the programs know of it.
    pub fn bits(&self) -> u32 {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        bit(self.is_loopback, device::LOOPBACK) | bit(self.keeps_time, device::KEEPS_TIME)
    }
}

/// The interfaces to which routes lead.
fn routed(routes: &Path) -> BTreeSet<String> {
    let text = |file: &str| fs::read_to_string(routes.join(file)).unwrap_or_default();
    let (four, six) = (text("route"), text("ipv6_route"));
    let four = four.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    four.chain(six.lines().filter_map(|line| line.split_whitespace().last())).map(str::to_owned).collect()
}

fn of_class(
    class: &Path,
    qdiscs: &BTreeMap<u32, String>,
    routed: &BTreeSet<String>,
) -> Result<Vec<NetworkDevice>, String> {
    let failed = |error| format!("read the network's interfaces in {}: {error}", class.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(class).map_err(failed)? {
        let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
        // Another kind of file, as of bonds, or one that is gone by now.
        let Some(number) = number(class, &name) else { continue };
        all.push(NetworkDevice {
            number,
            is_loopback: text(class, &name, "type").as_deref() == Some(LOOPBACK_TYPE),
            has_route: routed.contains(&name),
            qdisc: qdiscs.get(&number).cloned().unwrap_or_default(),
            keeps_time: keeps_time(class, &name, qdiscs, DEEPEST),
            name,
        });
    }
    all.sort_by_key(|device| (!device.is_loopback, !device.has_route, device.number));
    all.truncate(MOST);
    Ok(all)
}

/// Whether a packet for this interface waits for its time, here or below.
fn keeps_time(class: &Path, name: &str, qdiscs: &BTreeMap<u32, String>, deepest: u32) -> bool {
    let Some(number) = number(class, name).filter(|_| deepest > 0) else { return false };
    if let Some(qdisc) = qdiscs.get(&number) {
        return qdisc == KEEPS_TIME;
    }
    // These give a packet to those below with its time. A bridge, and a pair that leads to another namespace, take that away.
    let is_transparent = text(class, name, "uevent")
        .is_some_and(|text| text.lines().any(|line| matches!(line, "DEVTYPE=bond" | "DEVTYPE=vlan")));
    if !is_transparent {
        return false;
    }
    let entries = fs::read_dir(class.join(name)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let below: Vec<String> = names.filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned())).collect();
    !below.is_empty() && below.iter().all(|name| keeps_time(class, name, qdiscs, deepest - 1))
}

fn number(class: &Path, name: &str) -> Option<u32> {
    text(class, name, "ifindex")?.parse().ok()
}

fn text(class: &Path, name: &str, file: &str) -> Option<String> {
    fs::read_to_string(class.join(name).join(file)).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_bond_wait_where_those_of_all_its_ports_do() {
        let class = tempfile::tempdir().unwrap();
        let class = class.path();
        let put = |name: &str, number: u32, kind: &str, lower: &[&str]| {
            let devtype = ["bond", "vlan", "bridge"].into_iter().find(|devtype| name.starts_with(devtype));
            fs::create_dir_all(class.join(name)).unwrap();
            fs::write(class.join(name).join("ifindex"), format!("{number}\n")).unwrap();
            fs::write(class.join(name).join("type"), format!("{kind}\n")).unwrap();
            let devtype = devtype.map_or_else(String::new, |devtype| format!("DEVTYPE={devtype}\n"));
            fs::write(class.join(name).join("uevent"), format!("{devtype}INTERFACE={name}\n")).unwrap();
            lower.iter().for_each(|lower| fs::create_dir(class.join(name).join(format!("lower_{lower}"))).unwrap());
        };
        put("lo", 1, "772", &[]);
        put("eth0", 2, "1", &[]);
        put("eth1", 3, "1", &[]);
        put("bond0", 4, "1", &["eth0", "eth1"]);
        put("vlan7", 5, "1", &["bond0"]);
        put("veth", 6, "1", &[]);
        put("bond_of_itself", 7, "1", &["bond_of_itself"]);
        // It takes the time away.
        put("bridge0", 8, "1", &["eth0"]);
        fs::write(class.join("bonding_masters"), "bond0\n").unwrap();
        let of = |eth1: &str| {
            let root =
                |interface, kind: &str| qdiscs::Qdisc { interface, handle: 0, parent: u32::MAX, kind: kind.to_owned() };
            // As the kernel says it of interfaces without a queue.
            let bare = [1, 4, 5, 6, 7, 8].map(|interface| root(interface, "noqueue"));
            let all = [&[root(2, "fq"), root(3, eth1)][..], &bare].concat();
            of_class(class, &qdiscs::by_interface(&all), &["eth1".to_owned()].into()).unwrap()
        };
        let with_fq = of("fq");
        let names: Vec<_> = with_fq.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["lo", "eth1", "eth0", "bond0", "vlan7", "veth", "bond_of_itself", "bridge0"]);
        let bits = |all: &[NetworkDevice]| all.iter().map(NetworkDevice::bits).collect::<Vec<_>>();
        assert_eq!(bits(&with_fq), [1, 2, 2, 2, 2, 0, 0, 0]);
        assert_eq!(bits(&of("fq_codel")), [1, 0, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_route_of_either_family_leads_to_an_interface() {
        let routes = tempfile::tempdir().unwrap();
        let table = "Iface\tDestination\tGateway\neth0\t00000000\t0102000A\n";
        fs::write(routes.path().join("route"), table).unwrap();
        fs::write(routes.path().join("ipv6_route"), "fe80 40 00 00 0000 00000100 00000001 00000000 00000001     ib0\n")
            .unwrap();
        assert_eq!(routed(routes.path()), ["eth0", "ib0"].map(str::to_owned).into());
    }

    #[test]
    fn this_host_has_a_loopback() {
        let all = NetworkDevice::all().unwrap();
        assert!(all.iter().any(|device| device.is_loopback && device.number == 1), "{all:?}");
    }
}
