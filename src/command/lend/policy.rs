// SPDX-License-Identifier: GPL-2.0-or-later
//! Who is lent how much memory, and who gives back in which order: numbers alone.
//!
//! A job's *grant* is the memory limit that it has without this. What its limit is above that is *lent*. Memory is lent and given back in
//! pieces, each an eighth of the grant, and a job that is lent any has more than it uses: a piece, and three while it grows. Owners come first: what jobs have
//! reserved is never lent to others, and what is lent goes back as soon as a new job has reserved it.

use jobfence::config::Percent;

/// What is lent is a multiple of this: of the pages of every kernel.
pub const PAGE: u64 = 64 << 10;

/// A piece is such a part of the grant.
const PIECES: u64 = 8;

/// So many pieces more has a job that is lent some, until it has not needed them for a while: it may grow faster than is looked.
const AHEAD: u64 = 2;

/// The memory of the node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// What the system and jobs have together.
    pub whole: u64,
    /// What the site keeps for the system.
    pub reserve: u64,
    /// What the system has in use now.
    pub system: u64,
    /// The most that is lent.
    pub pool: u64,
    /// What those jobs may use that are lent nothing.
    pub reserved: u64,
}

/// A job that may be lent memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMemory {
    /// Its own limit.
    pub grant: u64,
    /// Its limit now.
    pub limit: u64,
    /// In use, without page cache that can be taken back at once.
    pub used: u64,
    /// The most that its limit may be, as a share of the grant.
    pub most: Percent,
    /// Whether it has had a lower limit for so short a time that it keeps what it does not use.
    pub is_growing: bool,
    /// Whether it has one piece before it needs it: where the kernel slows a job above its grant, and tells of that.
    pub is_ahead: bool,
}

/// What a job's limit is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobShare {
    pub limit: u64,
    /// Whether others have reserved what is above that: then it goes back, also if it is in use.
    pub is_claimed: bool,
    /// Above this the kernel slows the job until more is lent. `None`: it does not.
    pub soft: Option<u64>,
}

impl JobMemory {
    /// In such amounts it is lent and gives back.
    pub fn piece(&self) -> u64 {
        pages(self.grant / PIECES).max(PAGE)
    }

    /// What it is lent now.
    pub fn lent(&self) -> u64 {
        self.limit.saturating_sub(self.grant)
    }

    /// What of that it uses.
    fn lent_in_use(&self) -> u64 {
        self.used.saturating_sub(self.grant).div_ceil(PAGE).saturating_mul(PAGE).min(self.lent())
    }

    /// The most that it may be lent.
    pub fn most(&self) -> u64 {
        pages(self.most.of(self.grant)).saturating_sub(self.grant)
    }

    /// What it would be lent if it used so much.
    fn wanted(&self, used: u64) -> u64 {
        let piece = self.piece();
        let above = used.saturating_add(piece).saturating_sub(self.grant);
        let pieces = above.div_ceil(piece).max(u64::from(self.is_ahead));
        pieces.saturating_mul(piece).min(self.most())
    }

    /// Whether it would soon be at its limit.
    pub fn needs_more(&self) -> bool {
        self.wanted(self.used) > self.lent() && self.used.saturating_add(self.piece()) > self.limit
    }

    /// What it keeps if nobody else needs it. Who frees a piece and takes it again keeps it.
    fn kept(&self) -> u64 {
        let used = if self.is_growing { u64::MAX } else { self.used.saturating_add(self.piece()) };
        self.lent().min(self.wanted(used).min(self.most()).max(self.lent_in_use()))
    }
}

impl NodeMemory {
    /// What nobody has reserved, if the system keeps so much.
    fn unreserved(&self, jobs: &[JobMemory], system: u64) -> u64 {
        let granted = jobs.iter().fold(self.reserved, |sum, job| sum.saturating_add(job.grant));
        self.whole.saturating_sub(system).saturating_sub(granted)
    }

    /// Divides what may be lent. More is lent only from what nobody has now: what others give back is lent at the next look.
    pub fn divide(&self, jobs: &[JobMemory]) -> Vec<JobShare> {
        let mut lent: Vec<u64> = jobs.iter().map(JobMemory::kept).collect();
        let is_claimed = self.take_back(jobs, &mut lent);
        let now = jobs.iter().fold(0, |sum: u64, job| sum.saturating_add(job.lent()));
        let mut free = self.unreserved(jobs, self.reserve.max(self.system)).min(self.pool).saturating_sub(now);
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        // Those first that need it, and of them the one that has least.
        order.sort_by_key(|at| jobs.get(*at).map(|job| (!job.needs_more(), job.lent())));
        let mut is_short = false;
        for (at, job) in order.iter().filter_map(|at| Some((*at, jobs.get(*at)?))) {
            let Some(lent) = lent.get_mut(at).filter(|lent| **lent == job.lent()) else { continue };
            let used = if job.needs_more() { job.used.saturating_add(AHEAD * job.piece()) } else { job.used };
            let more = pages(job.wanted(used).saturating_sub(*lent).min(free));
            (*lent, free) = (lent.saturating_add(more), free.saturating_sub(more));
            is_short |= job.needs_more() && more == 0;
        }
        // Who has a piece before it is needed gives it to those that need one.
        for (lent, job) in lent.iter_mut().zip(jobs).filter(|(_, job)| is_short && job.is_ahead && !job.is_growing) {
            let needed = JobMemory { is_ahead: false, ..*job }.wanted(job.used).max(job.lent_in_use());
            *lent = (*lent).min(needed);
        }
        let all = jobs.iter().zip(lent).zip(is_claimed);
        all.map(|((job, lent), is_claimed)| job.share(lent, is_claimed)).collect()
    }

    /// Lowers what is lent to what may be. Returns of whom others have reserved what is in use. A site that makes the pool smaller takes
    /// back what nobody uses, and no more.
    fn take_back(&self, jobs: &[JobMemory], lent: &mut [u64]) -> Vec<bool> {
        let mut is_claimed = vec![false; jobs.len()];
        let unreserved = self.unreserved(jobs, self.reserve);
        let above = |lent: &[u64], room: u64| {
            upward(lent.iter().fold(0, |sum: u64, lent| sum.saturating_add(*lent)).saturating_sub(room))
        };
        // First what nobody uses, of those that have most of it.
        let unused = |at: usize, lent: &[u64]| {
            lent.get(at).zip(jobs.get(at)).map_or(0, |(lent, job)| lent.saturating_sub(job.lent_in_use()))
        };
        while let Some(most) = (0..jobs.len()).max_by_key(|at| unused(*at, lent)) {
            let less = unused(most, lent).min(above(lent, unreserved.min(self.pool)));
            let Some(of_most) = lent.get_mut(most).filter(|_| less > 0) else { break };
            *of_most = of_most.saturating_sub(less);
        }
        // Then from the fewest jobs: the smallest that is enough, or else the largest.
        loop {
            let needed = above(lent, unreserved);
            let of = |at: &usize| lent.get(*at).copied().unwrap_or(0);
            let enough = (0..lent.len()).filter(|at| of(at) >= needed).min_by_key(of);
            let most = enough.or_else(|| (0..lent.len()).max_by_key(of)).filter(|at| needed > 0 && of(at) > 0);
            let Some(at) = most else { break };
            let (Some(of_one), Some(is_claimed)) = (lent.get_mut(at), is_claimed.get_mut(at)) else { break };
            (*of_one, *is_claimed) = (of_one.saturating_sub(needed), true);
        }
        is_claimed
    }
}

impl JobMemory {
    fn share(&self, lent: u64, is_claimed: bool) -> JobShare {
        let limit = self.grant.saturating_add(lent);
        let may_have_more = lent < self.most() && self.wanted(self.used) <= lent;
        let soft = limit.saturating_sub(self.piece()).max(self.grant);
        let soft =
            if is_claimed { Some(limit) } else { Some(soft).filter(|_| self.is_ahead && lent > 0 && may_have_more) };
        JobShare { limit, is_claimed, soft }
    }
}

fn pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

fn upward(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE).saturating_mul(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    const NODE: NodeMemory =
        NodeMemory { whole: 8192 * MIB, reserve: 512 * MIB, system: 0, pool: 4096 * MIB, reserved: 0 };

    /// May grow by half, and uses and has so many MiB.
    fn job(grant: u64, limit: u64, used: u64) -> JobMemory {
        let [grant, limit, used] = [grant, limit, used].map(|mib| mib * MIB);
        JobMemory { grant, limit, used, most: Percent::from_hundredths(15_000), is_growing: false, is_ahead: false }
    }

    fn limits(node: NodeMemory, jobs: &[JobMemory]) -> Vec<u64> {
        node.divide(jobs).iter().map(|share| share.limit / MIB).collect()
    }

    #[test]
    fn a_job_is_lent_a_piece_when_it_comes_near_its_limit() {
        let one = |limit, used| limits(NODE, &[job(800, limit, used)])[0];
        assert_eq!([one(800, 0), one(800, 700), one(800, 701), one(800, 800)], [800, 800, 1100, 1100]);
        assert_eq!([one(900, 800), one(900, 801), one(1000, 1150), one(1200, 1200)], [900, 1200, 1200, 1200]);
        let none = JobMemory { most: Percent::HUNDRED, ..job(800, 800, 800) };
        assert_eq!(limits(NODE, &[none]), [800]);
    }

    #[test]
    fn what_is_not_used_comes_back_and_not_at_once() {
        let one = |used, is_growing| limits(NODE, &[JobMemory { is_growing, ..job(800, 1200, used) }])[0];
        assert_eq!([one(1001, false), one(1000, false), one(700, false), one(600, false)], [1200, 1200, 900, 800]);
        assert_eq!(one(100, true), 1200);
    }

    #[test]
    fn what_is_reserved_is_not_lent() {
        let full = NodeMemory { reserved: (8192 - 512 - 800) * MIB, ..NODE };
        assert_eq!(limits(full, &[job(800, 800, 800)]), [800]);
        let busy = NodeMemory { system: (8192 - 800 - 40) * MIB, ..NODE };
        assert_eq!(limits(busy, &[job(800, 800, 800)]), [840], "the system uses more than is kept for it");
        assert_eq!(limits(busy, &[job(800, 900, 850)]), [900], "that takes nothing back");
        assert_eq!(limits(NodeMemory { pool: 0, ..NODE }, &[job(800, 800, 800)]), [800]);
    }

    #[test]
    fn a_new_job_has_back_what_nobody_uses_first_and_then_from_the_fewest() {
        let new = |mib: u64| NodeMemory { reserved: (8192 - 512 - 2400 - mib) * MIB, ..NODE };
        let growing = |limit, used| JobMemory { is_growing: true, ..job(800, limit, used) };
        let jobs = [growing(1200, 1200), growing(1000, 900), growing(900, 850)];
        assert_eq!(limits(new(700), &jobs), [1200, 1000, 900]);
        assert_eq!(limits(new(600), &jobs), [1200, 900, 900]);
        // All that is in use: 400, 100 and 50.
        let claimed = |mib| {
            let shares = new(mib).divide(&jobs);
            shares.iter().map(|share| (share.limit / MIB, share.is_claimed)).collect::<Vec<_>>()
        };
        assert_eq!(claimed(550), [(1200, false), (900, false), (850, false)]);
        assert_eq!(claimed(500), [(1200, false), (900, false), (800, true)]);
        assert_eq!(claimed(470), [(1200, false), (820, true), (850, false)]);
        assert_eq!(claimed(150), [(800, true), (900, false), (850, false)]);
        assert_eq!(claimed(0), [(800, true), (800, true), (800, true)]);
    }

    #[test]
    fn a_smaller_pool_costs_nobody_what_is_in_use() {
        let none = NodeMemory { pool: 0, ..NODE };
        let shares = none.divide(&[job(800, 1200, 1100), job(800, 900, 700)]);
        let seen: Vec<_> = shares.iter().map(|share| (share.limit / MIB, share.is_claimed)).collect();
        assert_eq!(seen, [(1100, false), (800, false)]);
    }

    #[test]
    fn who_needs_more_has_it_before_who_is_ahead() {
        let ahead = |limit, used| JobMemory { is_ahead: true, ..job(800, limit, used) };
        let share = NODE.divide(&[ahead(800, 0)])[0];
        assert_eq!(share, JobShare { limit: 900 * MIB, is_claimed: false, soft: Some(800 * MIB) });
        assert_eq!(NODE.divide(&[ahead(900, 801)])[0], JobShare { limit: 1200 * MIB, is_claimed: false, soft: None });
        let far = JobMemory { most: Percent::from_hundredths(30_000), ..ahead(900, 801) };
        assert_eq!(NODE.divide(&[far])[0].soft, Some(1100 * MIB));
        assert_eq!(NODE.divide(&[ahead(1200, 1150)])[0].soft, None, "nothing more comes");
        let scarce = NodeMemory { pool: 100 * MIB, ..NODE };
        assert_eq!(limits(scarce, &[ahead(800, 0), ahead(800, 790)]), [800, 900]);
        assert_eq!(limits(scarce, &[ahead(900, 0), ahead(800, 790)]), [800, 800], "and at the next look");
        let lent_more_before = JobMemory { most: Percent::HUNDRED, ..ahead(900, 860) };
        let none = NodeMemory { pool: 0, ..NODE };
        assert_eq!(limits(none, &[lent_more_before, job(800, 800, 790)]), [860, 800], "what is in use stays");
        assert_eq!(scarce.divide(&[ahead(900, 850), ahead(800, 0)])[0].soft, None, "nothing more is there");
    }

    fn any_job() -> impl Strategy<Value = JobMemory> {
        let amounts = (1_u64..2000, 0_u64..2000, 0_u64..4000, 10_000_u32..30_000);
        (amounts, any::<bool>(), any::<bool>()).prop_map(|((grant, lent, used, most), is_growing, is_ahead)| {
            // It may have been lent more than it may have by now.
            let (grant, lent) = (grant * 60 * PAGE, lent * 20 * PAGE);
            let limit = grant + lent;
            let most = Percent::from_hundredths(most);
            JobMemory { grant, limit, used: (used * 1_000_000).min(limit), most, is_growing, is_ahead }
        })
    }

    fn any_node() -> impl Strategy<Value = NodeMemory> {
        prop::array::uniform5(0_u64..40_000).prop_map(|[whole, reserve, system, pool, reserved]| {
            let [whole, reserve, system, pool, reserved] =
                [whole, reserve / 8, system / 4, pool / 4, reserved / 4].map(|mib| mib * MIB);
            NodeMemory { whole, reserve, system, pool, reserved }
        })
    }

    /// What would be lent if each had what it is to have.
    fn sum(shares: &[JobShare], jobs: &[JobMemory]) -> u64 {
        shares.iter().zip(jobs).map(|(share, job)| share.limit - job.grant).sum()
    }

    proptest! {
        #[test]
        fn no_owner_loses_and_no_more_is_lent_than_there_is(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            let shares = node.divide(&jobs);
            let granted: u64 = node.reserved + jobs.iter().map(|job| job.grant).sum::<u64>();
            let unreserved = node.whole.saturating_sub(node.reserve).saturating_sub(granted);
            let room = unreserved.min(node.pool);
            prop_assert_eq!(shares.len(), jobs.len());
            prop_assert!(sum(&shares, &jobs) <= unreserved, "{:?}", shares);
            let in_use: u64 = jobs.iter().map(JobMemory::lent_in_use).sum();
            prop_assert!(sum(&shares, &jobs) <= room.max(in_use), "{:?}", shares);
            // Also before any has given back.
            let before: u64 = jobs.iter().map(JobMemory::lent).sum();
            let raised: u64 = shares.iter().zip(&jobs).map(|(share, job)| share.limit.max(job.limit) - job.grant).sum();
            prop_assert!(raised <= room.max(before));
            for (share, job) in shares.iter().zip(&jobs) {
                prop_assert!(share.limit >= job.grant && share.limit <= job.most.of(job.grant).max(job.limit));
                prop_assert_eq!((share.limit - job.grant) % PAGE, 0);
                prop_assert!(share.soft.is_none_or(|soft| soft >= job.grant && soft <= share.limit));
                // Only a borrower that uses it has something claimed, and only if the node has no room for it.
                prop_assert!(!share.is_claimed || job.lent_in_use() > 0 && before > unreserved);
                prop_assert!(share.limit >= job.used.min(job.limit) || share.is_claimed);
            }
        }

        #[test]
        fn all_that_is_lent_comes_back(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            // They use no more, and time passes.
            let calm = |job: &JobMemory| JobMemory { used: 0, is_growing: false, is_ahead: false, ..*job };
            let shares = node.divide(&jobs.iter().map(calm).collect::<Vec<_>>());
            prop_assert!(shares.iter().zip(&jobs).all(|(share, job)| share.limit == job.grant));
            // A new job that has reserved all has all, whatever is in use.
            let shares = NodeMemory { reserved: node.whole, ..node }.divide(&jobs);
            prop_assert!(shares.iter().zip(&jobs).all(|(share, job)| share.limit == job.grant));
            let shares = NodeMemory { pool: 0, ..node }.divide(&jobs);
            prop_assert!(shares.iter().zip(&jobs).all(|(share, job)| share.limit <= job.limit));
        }

        #[test]
        fn looks_come_to_rest(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            let mut jobs = jobs;
            for _ in 0..40 {
                let shares = node.divide(&jobs);
                jobs.iter_mut().zip(&shares).for_each(|(job, share)| {
                    (job.limit, job.is_growing) = (share.limit, false);
                    job.used = job.used.min(share.limit);
                });
            }
            let shares = node.divide(&jobs);
            prop_assert!(shares.iter().zip(&jobs).all(|(share, job)| share.limit == job.limit), "{:?} {:?}", shares, jobs);
        }
    }
}
