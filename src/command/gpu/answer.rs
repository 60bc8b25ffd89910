// SPDX-License-Identifier: GPL-2.0-or-later
//! What `jobfence hold` asks its probe, and what that answers: a line of JSON each. Both are the same program, so the form has no number.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::drm::{DrmClient, DrmDevice};
use super::nvml::Accounted;

/// The GPUs that are asked about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeQuestion {
    /// The numbers of NVIDIA's GPUs.
    pub nvidia: Vec<u32>,
    /// A time for each of these GPUs, in microseconds since 1970: when the job began that has it, or the last of them.
    pub began: Vec<u64>,
    /// Whether all of NVIDIA's GPUs are asked about, since it is not known which are the jobs'.
    pub nvidia_all: bool,
    /// Whether the driver is to keep a record of each process.
    pub accounting: bool,
    /// The names of other makers' GPUs below /sys/class/drm.
    pub drm: Vec<String>,
    /// The processes whose use of those counts.
    pub pids: Vec<i32>,
}

/// One of NVIDIA's GPUs. What the driver does not say is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NvidiaGpu {
    pub minor: u32,
    pub uuid: Option<String>,
    /// How busy it was of late: the mean and the highest sample, in percent.
    pub percent: Option<f64>,
    pub most_percent: Option<f64>,
    pub memory: Option<u64>,
    pub memory_total: Option<u64>,
    /// Its energy since the driver was loaded, in mJ.
    pub energy: Option<u64>,
    /// The reasons why its clocks are slow, as NVML's bits.
    pub slowed: Option<u64>,
    pub is_divided: Option<bool>,
    /// Processes that compute on it, each with its memory.
    pub processes: Option<Vec<(u32, Option<u64>)>>,
    /// The driver's records of processes. `None`: it keeps none.
    pub accounted: Option<Vec<Accounted>>,
}

/// What the probe answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeAnswer {
    /// What went wrong, for the log.
    pub trouble: Vec<String>,
    pub nvidia: Vec<NvidiaGpu>,
    pub drm: Vec<DrmDevice>,
    pub clients: Vec<DrmClient>,
}

impl ProbeQuestion {
    pub fn json(&self) -> Value {
        json!({
            "nvidia": self.nvidia,
            "began": self.began,
            "nvidia_all": self.nvidia_all,
            "accounting": self.accounting,
            "drm": self.drm,
            "pids": self.pids,
        })
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            nvidia: all(value, "nvidia", |minor| u32::try_from(minor.as_u64()?).ok())?,
            began: all(value, "began", Value::as_u64)?,
            nvidia_all: value.get("nvidia_all")?.as_bool()?,
            accounting: value.get("accounting")?.as_bool()?,
            drm: all(value, "drm", text)?,
            pids: all(value, "pids", |pid| i32::try_from(pid.as_u64()?).ok())?,
        })
    }

    /// Whether the question is empty.
    pub fn is_empty(&self) -> bool {
        self.nvidia.is_empty() && !self.nvidia_all && self.drm.is_empty()
    }
}

impl ProbeAnswer {
    pub fn json(&self) -> Value {
        json!({
            "trouble": self.trouble,
            "nvidia": self.nvidia.iter().map(NvidiaGpu::json).collect::<Vec<_>>(),
            "drm": self.drm.iter().map(device_json).collect::<Vec<_>>(),
            "clients": self.clients.iter().map(client_json).collect::<Vec<_>>(),
        })
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            trouble: all(value, "trouble", text)?,
            nvidia: all(value, "nvidia", NvidiaGpu::from_json)?,
            drm: all(value, "drm", device_of)?,
            clients: all(value, "clients", client_of)?,
        })
    }
}

impl NvidiaGpu {
    fn json(&self) -> Value {
        let accounted =
            |one: &Accounted| json!([one.pid, one.begun, one.percent, one.memory, one.milliseconds, one.is_running]);
        json!({
            "minor": self.minor,
            "uuid": self.uuid,
            "percent": self.percent,
            "most_percent": self.most_percent,
            "memory": self.memory,
            "memory_total": self.memory_total,
            "energy": self.energy,
            "slowed": self.slowed,
            "is_divided": self.is_divided,
            "processes": self.processes,
            "accounted": self.accounted.as_ref().map(|all| all.iter().map(accounted).collect::<Vec<_>>()),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |member: &str| value.get(member).and_then(Value::as_u64);
        let decimal = |member: &str| value.get(member).and_then(Value::as_f64);
        let process = |pair: &Value| Some((u32::try_from(pair.get(0)?.as_u64()?).ok()?, pair.get(1)?.as_u64()));
        Some(Self {
            minor: u32::try_from(number("minor")?).ok()?,
            uuid: value.get("uuid").and_then(text),
            percent: decimal("percent"),
            most_percent: decimal("most_percent"),
            memory: number("memory"),
            memory_total: number("memory_total"),
            energy: number("energy"),
            slowed: number("slowed"),
            is_divided: value.get("is_divided").and_then(Value::as_bool),
            processes: all(value, "processes", process),
            accounted: all(value, "accounted", accounted_of),
        })
    }
}

fn accounted_of(value: &Value) -> Option<Accounted> {
    Some(Accounted {
        pid: u32::try_from(value.get(0)?.as_u64()?).ok()?,
        begun: value.get(1)?.as_u64()?,
        percent: value.get(2)?.as_u64(),
        memory: value.get(3)?.as_u64(),
        milliseconds: value.get(4)?.as_u64()?,
        is_running: value.get(5)?.as_bool()?,
    })
}

fn device_json(device: &DrmDevice) -> Value {
    json!({
        "name": device.name,
        "address": device.address,
        "is_divided": device.is_divided,
        "percent": device.percent,
        "memory": device.memory,
        "memory_total": device.memory_total,
        "energy": device.energy,
        "power": device.power,
    })
}

fn device_of(value: &Value) -> Option<DrmDevice> {
    let number = |member: &str| value.get(member).and_then(Value::as_u64);
    Some(DrmDevice {
        name: value.get("name").and_then(text)?,
        address: value.get("address").and_then(text),
        is_divided: value.get("is_divided")?.as_bool()?,
        percent: number("percent"),
        memory: number("memory"),
        memory_total: number("memory_total"),
        energy: number("energy"),
        power: number("power"),
    })
}

fn client_json(client: &DrmClient) -> Value {
    json!({
        "pid": client.pid,
        "address": client.address,
        "id": client.id,
        "engines": client.engines,
        "memory": client.memory,
    })
}

fn client_of(value: &Value) -> Option<DrmClient> {
    let engines = value.get("engines")?.as_object()?;
    let engines: BTreeMap<_, _> =
        engines.iter().filter_map(|(name, busy)| Some((name.clone(), busy.as_u64()?))).collect();
    Some(DrmClient {
        pid: i32::try_from(value.get("pid")?.as_i64()?).ok()?,
        address: value.get("address").and_then(text)?,
        id: value.get("id")?.as_u64()?,
        engines,
        memory: value.get("memory").and_then(Value::as_u64),
    })
}

/// Each entry of a list. `None`: it is no list.
fn all<T>(value: &Value, member: &str, of: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    Some(value.get(member)?.as_array()?.iter().filter_map(of).collect())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_the_same() {
        let question = ProbeQuestion {
            nvidia: vec![3, 0],
            began: vec![5, 1 << 50],
            nvidia_all: true,
            accounting: true,
            drm: vec!["renderD128".into()],
            pids: vec![7, 1 << 22],
        };
        assert_eq!(ProbeQuestion::from_json(&question.json()), Some(question));
        let record = Accounted { pid: 7, begun: 9, percent: None, memory: Some(5), milliseconds: 50, is_running: true };
        let gpu = NvidiaGpu {
            minor: 3,
            uuid: Some("GPU-a".into()),
            percent: Some(12.5),
            processes: Some(vec![(7, None), (8, Some(u64::MAX - 1))]),
            accounted: Some(vec![record]),
            is_divided: Some(false),
            ..NvidiaGpu::default()
        };
        let device = DrmDevice { name: "card0".into(), percent: Some(3), is_divided: true, ..DrmDevice::default() };
        let client = DrmClient {
            pid: 7,
            address: "0".into(),
            id: 1,
            engines: BTreeMap::from([("gfx".into(), 9)]),
            memory: None,
        };
        let answer = ProbeAnswer {
            trouble: vec!["it\n".into()],
            nvidia: vec![gpu, NvidiaGpu::default()],
            drm: vec![device],
            clients: vec![client],
        };
        let line = answer.json().to_string();
        assert!(!line.contains('\n'));
        assert_eq!(ProbeAnswer::from_json(&serde_json::from_str(&line).unwrap()), Some(answer));
        assert_eq!(ProbeAnswer::from_json(&json!({})), None);
    }
}
