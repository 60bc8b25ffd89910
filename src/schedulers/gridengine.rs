// SPDX-License-Identifier: GPL-2.0-or-later
//! Grid Engine: Son of Grid Engine 8.1.9, and its relatives that keep its files.
//!
//! For each job, and for each slave task of a parallel job, execd starts `shepherd_cmd` of sge_conf(5) as root. The program starts in a
//! directory with execd's files about the job, which `spool` reads. `jobfence` is that program, under the name that execd gives it, and
//! starts the shepherd itself.

pub mod amount;
pub mod card;
pub mod client;
pub mod complexes;
pub mod spool;

/// The directory in `RunDir` for what qmaster debits for the jobs of each queue.
pub const KEPT: &str = "gridengine";

/// The beginning of a shepherd's name on its command line. execd adds the job's number.
pub const SHEPHERD: &str = "sge_shepherd";

/// The step of a job's shepherd. For a slave task, `-` and the task's name follow.
pub const SHEPHERDS_STEP: &str = "shepherd";

/// The step of the job's own script.
pub const JOBS_STEP: &str = "job";

/// The directory of a step, from that of its shepherd's step. `None`: `directory` is not a shepherd's.
pub fn of_shepherd(directory: &str) -> Option<String> {
    match directory.strip_prefix("step_")?.strip_prefix(SHEPHERDS_STEP)? {
        "" => Some(format!("step_{JOBS_STEP}")),
        task => task.strip_prefix('-').map(|task| format!("step_{task}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shepherd_has_a_step_beside_that_of_its_job() {
        assert_eq!(of_shepherd("step_shepherd").as_deref(), Some("step_job"));
        assert_eq!(of_shepherd("step_shepherd-1.node1").as_deref(), Some("step_1.node1"));
        for other in ["step_job", "step_shepherds", "step_1.shepherd", "shepherd"] {
            assert_eq!(of_shepherd(other), None, "{other}");
        }
    }
}
