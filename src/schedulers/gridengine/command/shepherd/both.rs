// SPDX-License-Identifier: GPL-2.0-or-later
//! What both fences of a job have seen when they are gone: what the job has used, and what its user is told.

use jobfence::doors::life::{self, HowClosed};
use jobfence::error::Result;
#[cfg(test)]
use jobfence::figures::LimitedTo;
use jobfence::figures::Usage;
use jobfence::job::Id;

/// Of both fences together. Whatever is here has been logged: an interactive job and a slave task have no file for it.
#[derive(Default)]
pub struct BothFences {
    /// What the fence of the job has counted, and not that of the shepherd. `None`: nobody knows.
    pub usage: Option<Usage>,
    /// What has happened in both, once each.
    pub sentences: Vec<String>,
    /// The sentences without the names of their fences.
    bare: Vec<String>,
}

impl BothFences {
    /// Adds what has become of the fence of the job itself, or of its shepherd's.
    pub fn add(&mut self, job: &Id, is_of_job: bool, closed: Vec<Result<HowClosed>>) {
        for one in closed {
            match one {
                Ok(HowClosed::Removed(seen)) => {
                    log::info!("{}", life::in_words(&seen));
                    if is_of_job {
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

    /// A fence also tells of what the job as a whole was refused: both of them would.
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
