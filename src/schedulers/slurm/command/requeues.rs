// SPDX-License-Identifier: GPL-2.0-or-later
//! What slurm.conf says about jobs that are to run again, for `jobfence check`.

use std::time::Duration;

use jobfence::schedulers::slurm::conf::Lines;

/// How long slurmctld knows a job that has ended if slurm.conf does not say it, in seconds (`DEFAULT_MIN_JOB_AGE` in
/// src/common/read_config.h, the same from 22.05 to 26.05).
const MIN_JOB_AGE: u64 = 300;

/// What of it meets `OnOutOfMemory`, if `jobfence hold` looks so often.
pub fn doubts(slurm_conf: &Lines, every: Duration) -> Vec<String> {
    let number = |key: &str| slurm_conf.last(key).and_then(|found| found.value.parse::<u64>().ok());
    let mut doubts = Vec::new();
    if number("JobRequeue") == Some(0) {
        doubts.push("slurm.conf has JobRequeue=0: only a job that was submitted with --requeue is requeued".to_owned());
    }
    let age = number("MinJobAge").unwrap_or(MIN_JOB_AGE);
    let two_looks = every.as_secs().saturating_mul(2);
    // With 0, none is forgotten.
    if age > 0 && age <= two_looks {
        doubts.push(format!(
            "slurm.conf has MinJobAge={age}, and 'jobfence hold' looks every {} s (ReapInterval): Slurm may forget a job before that. Have \
             MinJobAge be more than {two_looks}",
            every.as_secs()
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_jobs_from_running_again_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("slurm.conf");
        let words = |text: &str, every| {
            std::fs::write(&file, text).unwrap();
            doubts(&Lines::read(&file), Duration::from_secs(every)).join("; ")
        };
        assert_eq!(words("ClusterName=c\n", 60), "");
        assert_eq!(words("JobRequeue=1\nMinJobAge=0\n", 600), "");
        assert!(words("JobRequeue=0\n", 60).contains("JobRequeue=0"));
        assert!(words("MinJobAge=120\n", 60).contains("more than 120"));
        assert_eq!(words("MinJobAge=121\n", 60), "");
        assert!(words("ClusterName=c\n", 150).contains("MinJobAge=300"));
    }
}
