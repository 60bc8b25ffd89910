// SPDX-License-Identifier: GPL-2.0-or-later
//! The results of a job's two fences at their end: what the job used, and what its user is told.

use jobfence::doors::life::{self, HowClosed};
use jobfence::error::Result;
#[cfg(test)]
use jobfence::figures::LimitedTo;
use jobfence::figures::Usage;
use jobfence::job::Id;

use crate::again::is_at_limit;

/// The results of both fences. All of them are logged, too: an interactive job and a slave task have no file for them.
#[derive(Default)]
pub struct BothFences {
    /// The usage in the fence of the job, without that of the shepherd. `None`: not known.
    pub usage: Option<Usage>,
    /// Whether a process in the fence of the job was killed at a limit that more memory for the job raises.
    pub was_killed: bool,
    /// What happened in either fence, each sentence once.
    pub sentences: Vec<String>,
    /// The sentences without the names of their fences, by which a repeated one is found.
    bare: Vec<String>,
}

impl BothFences {
    /// Adds the results of one fence: of the job's, or of its shepherd's.
    pub fn add(&mut self, job: &Id, is_of_job: bool, closed: Vec<Result<HowClosed>>) {
        for one in closed {
            match one {
                Ok(HowClosed::Removed(seen)) => {
                    log::info!("{}", life::in_words(&seen));
                    if is_of_job {
                        let peak = seen.usage.memory_peak.max(seen.job.memory_peak);
                        self.was_killed |=
                            seen.sentences.iter().any(|said| is_at_limit(said, peak, seen.limits.memory));
                        self.usage.get_or_insert(seen.usage);
                    }
                    let of_fence = seen.key.to_string();
                    seen.sentences.into_iter().for_each(|sentence| self.say(&of_fence, sentence));
                }
                Ok(HowClosed::Unseen(key)) => {
                    log::warn!("{key}: its fence is gone, and what it has seen is not known");
                }
                Ok(HowClosed::AnotherBoot(_)) => {}
                Err(error) => log::error!("job {job}: {error}; the janitor looks again"),
            }
        }
    }

    /// Adds a sentence, unless the other fence has told the same: both tell what was refused to the job as a whole.
    fn say(&mut self, of_fence: &str, sentence: String) {
        let bare = sentence.replacen(of_fence, "", 1);
        if !self.bare.contains(&bare) {
            log::info!("{sentence}");
            self.bare.push(bare);
            self.sentences.push(sentence);
        }
    }
}

/// A fence of a step of job 7, without any limit.
#[cfg(test)]
pub fn seen(step: &str) -> life::Seen {
    let id = |text| Id::new(text).unwrap();
    life::Seen {
        key: jobfence::job::JobKey { node: None, uid: 1000, job: id("7"), step: id(step) },
        run: 1,
        holder: jobfence::record::holder::Holder::Manual,
        path: Some("/x".to_owned()),
        usage: Usage::default(),
        job: Usage::default(),
        job_memory_swap_peak: None,
        limits: LimitedTo::default(),
        gpus: Vec::new(),
        sentences: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use jobfence::doors::life::Seen;
    use jobfence::error::Error;
    use jobfence::job::JobKey;

    use super::*;

    fn id(text: &str) -> Id {
        Id::new(text).unwrap()
    }

    fn key(step: &str) -> JobKey {
        seen(step).key
    }

    fn removed(step: &str, peak: u64, sentences: &[&str]) -> Vec<Result<HowClosed>> {
        let usage = Usage { memory_peak: Some(peak), ..Usage::default() };
        let sentences = sentences.iter().map(|sentence| format!("{}{sentence}", key(step))).collect();
        vec![Ok(HowClosed::Removed(Box::new(Seen { usage, sentences, ..seen(step) })))]
    }

    fn ended(job: Vec<Result<HowClosed>>, shepherd: Vec<Result<HowClosed>>) -> (Option<u64>, Vec<String>) {
        let mut ended = BothFences::default();
        ended.add(&id("7"), true, job);
        ended.add(&id("7"), false, shepherd);
        (ended.usage.and_then(|usage| usage.memory_peak), ended.sentences)
    }

    #[test]
    fn only_a_kill_in_the_job_at_its_limit_counts() {
        let killed = |is_of_job, said: &str| {
            let mut ended = BothFences::default();
            ended.add(&id("7"), is_of_job, removed("job", 5, &[said]));
            ended.was_killed
        };
        let at_limit = ": process 8 (x) was killed: the job reached its memory limit of 1.0 MiB.";
        assert!(killed(true, at_limit));
        assert!(!killed(false, at_limit), "the shepherd's children");
        for other in
            [": 3 were refused", ": process 8 (x) was killed: the user's jobs together reached their memory limit."]
        {
            assert!(!killed(true, other), "{other}");
        }
    }

    #[test]
    fn the_figures_are_the_jobs_and_the_sentences_of_both() {
        let shepherd = || removed("shepherd", 99, &[": process 8 was killed", ": 3 were refused"]);
        let told = |step: &str, what: &str| format!("{}: {what}", key(step));
        let (peak, sentences) = ended(removed("job", 5, &[": 3 were refused", ": process 7 was killed"]), shepherd());
        let all = [told("job", "3 were refused"), told("job", "process 7 was killed")];
        assert_eq!((peak, sentences), (Some(5), [&all[..], &[told("shepherd", "process 8 was killed")]].concat()));
        for unknown in [vec![Ok(HowClosed::Unseen(key("job")))], vec![Err(Error::new("no"))], Vec::new()] {
            let (peak, sentences) = ended(unknown, shepherd());
            assert_eq!((peak, sentences.len()), (None, 2), "the shepherd's figures are not the job's");
        }
    }
}
