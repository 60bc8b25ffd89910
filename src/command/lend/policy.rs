// SPDX-License-Identifier: GPL-2.0-or-later
//! Who is lent how much memory, and who gives back in which order: numbers alone.
//!
//! A job's *grant* is the memory limit that it has without this. What its limit is above that is *lent*. Memory is lent and given back in
//! pieces, each an eighth of the grant, and a job that is lent any has more than it uses: a piece, and three while it grows. A scavenger
//! has four times that. Owners come first: what jobs have reserved is lent to scavengers alone. When a new job has reserved what is lent,
//! the pieces go back of which nothing is in use. The others stay until their jobs free them or end: no job is made to give back what
//! it uses, and nothing more is lent until then.
//!
//! A *scavenger* is lent more: also what jobs have reserved and not touched for a while. It gives that back in whatever way: if an owner
//! touches it and the node then runs short, a scavenger that uses what it was lent is to be ended.

use jobfence::config::Percent;

/// What is lent is a multiple of this: of the pages of every kernel.
pub const PAGE: u64 = 64 << 10;

/// A piece is such a part of the grant.
const PIECES: u64 = 8;

/// So many pieces more has a job that is lent some, until it has not needed them for a while: it may grow faster than is looked.
const AHEAD: u64 = 2;

/// Where another job has one piece more than it uses, a scavenger has so many. It asks for little, so its pieces are small, and it fills
/// one in less time than passes between two looks. What it does not use goes back as soon as an owner touches it.
const OF_SCAVENGERS: u64 = 4;

/// The node runs short when less than this part of the reserve is free. Above it, scavengers are lent nothing more before any is ended.
const SHORT: u64 = 2;

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
    /// What those jobs may use that are lent nothing, as far as that is known.
    pub reserved: u64,
    /// What jobs have reserved and not touched for a while, as far as the site lends that.
    pub untouched: u64,
    /// What nobody has in use now.
    pub free: u64,
    /// Whether that is all that is reserved. Otherwise nothing more is lent.
    pub lends_more: bool,
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
    /// Whether it may be lent what others have reserved and not touched.
    pub is_scavenger: bool,
    /// Whether it may be ended for that: it was seen just now, and has not refused to die.
    pub may_end: bool,
    /// Whose job it is.
    pub uid: u32,
}

impl JobMemory {
    /// In such amounts it is lent and gives back.
    pub fn piece(&self) -> u64 {
        pages(self.grant / PIECES).max(PAGE)
    }

    /// When no more than this is left below its limit, it is lent more.
    pub fn margin(&self) -> u64 {
        self.piece().saturating_mul(if self.is_scavenger { OF_SCAVENGERS } else { 1 })
    }

    /// What it is lent now.
    pub fn lent(&self) -> u64 {
        self.limit.saturating_sub(self.grant)
    }

    /// Whether it uses any of that. Otherwise it is an owner like any other, whatever it is lent.
    pub fn uses_loan(&self) -> bool {
        self.lent() > 0 && self.used > self.grant
    }

    /// The pieces of that of which it uses any.
    pub fn lent_in_use(&self) -> u64 {
        let pieces = self.used.saturating_sub(self.grant).div_ceil(self.piece());
        pieces.saturating_mul(self.piece()).min(self.lent())
    }

    /// The most that it may be lent.
    pub fn most(&self) -> u64 {
        pages(self.most.of(self.grant)).saturating_sub(self.grant)
    }

    /// What it would be lent if it used so much.
    fn wanted(&self, used: u64) -> u64 {
        let above = used.saturating_add(self.margin()).saturating_sub(self.grant);
        above.div_ceil(self.piece()).saturating_mul(self.piece()).min(self.most())
    }

    /// Whether it would soon be at its limit.
    pub fn needs_more(&self) -> bool {
        self.wanted(self.used) > self.lent() && self.used.saturating_add(self.margin()) > self.limit
    }

    /// What it keeps if nobody else needs it. Who frees a piece and takes it again keeps it.
    fn kept(&self) -> u64 {
        let used = if self.is_growing { u64::MAX } else { self.used.saturating_add(self.piece()) };
        self.lent().min(self.wanted(used).max(self.lent_in_use()))
    }
}

impl NodeMemory {
    /// The node runs short when less than this is free.
    pub fn short(&self) -> u64 {
        self.reserve / SHORT
    }

    /// What is reserved, if the system keeps so much. It may be more than there is.
    fn promised(&self, jobs: &[JobMemory], system: u64) -> u64 {
        jobs.iter().fold(self.reserved.saturating_add(system), |sum, job| sum.saturating_add(job.grant))
    }

    /// What nobody has reserved, if the system keeps so much.
    fn unreserved(&self, jobs: &[JobMemory], system: u64) -> u64 {
        self.whole.saturating_sub(self.promised(jobs, system))
    }

    /// What scavengers may be lent of what is reserved, if the system keeps so much. What is promised and is not there is nobody's.
    fn untouched(&self, jobs: &[JobMemory], system: u64) -> u64 {
        self.untouched.saturating_sub(self.promised(jobs, system).saturating_sub(self.whole))
    }

    /// Divides what may be lent, and returns the limit of each. More is lent only from what nobody has now: what others give back is lent
    /// at a later look.
    pub fn divide(&self, jobs: &[JobMemory]) -> Vec<u64> {
        let mut lent: Vec<u64> = jobs.iter().map(JobMemory::kept).collect();
        self.take_back(jobs, &mut lent);
        let mut room = self.room(jobs);
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        // The one first that has least, and scavengers last.
        order.sort_by_key(|at| jobs.get(*at).map(|job| (job.is_scavenger, job.lent())));
        for (at, job) in order.iter().filter_map(|at| Some((*at, jobs.get(*at).filter(|job| job.needs_more())?))) {
            let Some(lent) = lent.get_mut(at).filter(|lent| **lent == job.lent()) else { continue };
            let wanted = job.wanted(job.used.saturating_add(AHEAD.saturating_mul(job.margin())));
            let free = if job.is_scavenger { room.of_scavengers } else { room.of_all };
            let more = pages(wanted.saturating_sub(*lent).min(free));
            *lent = lent.saturating_add(more);
            room = LendRoom {
                of_all: room.of_all.saturating_sub(more),
                of_scavengers: room.of_scavengers.saturating_sub(more),
            };
        }
        jobs.iter().zip(lent).map(|(job, lent)| job.grant.saturating_add(lent)).collect()
    }

    /// What may be lent more.
    fn room(&self, jobs: &[JobMemory]) -> LendRoom {
        if !self.lends_more {
            return LendRoom { of_all: 0, of_scavengers: 0 };
        }
        let now: Vec<u64> = jobs.iter().map(JobMemory::lent).collect();
        let all = now.iter().fold(0, |sum: u64, lent| sum.saturating_add(*lent));
        let system = self.reserve.max(self.system);
        let (unreserved, untouched) = (self.unreserved(jobs, system), self.untouched(jobs, system));
        let of_pool = self.pool.saturating_sub(all);
        // What is untouched is lent only while it is there: its owner may have begun to use it, and other scavengers may yet use what they
        // were lent.
        let is_scavenged = sum_of(jobs, &now, true) > 0;
        let not_used = jobs.iter().map(|job| job.lent().saturating_sub(job.lent_in_use()));
        let unclaimed = not_used.fold(self.free.saturating_sub(self.reserve), u64::saturating_sub);
        let of_all = unreserved.saturating_sub(of_unreserved(jobs, &now, untouched)).min(of_pool);
        LendRoom {
            // Nobody is lent what a scavenger would be ended for.
            of_all: if is_scavenged { of_all.min(unclaimed) } else { of_all },
            of_scavengers: unreserved.saturating_add(untouched).saturating_sub(all).min(of_pool).min(unclaimed),
        }
    }

    /// Lowers what is lent as far as others have reserved it and nobody uses it, first of scavengers, and of those that have most of that.
    fn take_back(&self, jobs: &[JobMemory], lent: &mut [u64]) {
        let (unreserved, untouched) = (self.unreserved(jobs, self.reserve), self.untouched(jobs, self.reserve));
        let unused = |at: usize, lent: &[u64]| {
            lent.get(at).zip(jobs.get(at)).map_or(0, |(lent, job)| lent.saturating_sub(job.lent_in_use()))
        };
        for which in [true, false] {
            let of_these = |at: &usize| jobs.get(*at).is_some_and(|job| job.is_scavenger == which);
            while let Some(most) = (0..jobs.len()).filter(of_these).max_by_key(|at| unused(*at, lent)) {
                let mut excess = of_unreserved(jobs, lent, untouched).saturating_sub(unreserved);
                if which {
                    // What scavengers have of the untouched is in nobody's way.
                    excess = excess.min(sum_of(jobs, lent, true).saturating_sub(untouched));
                }
                let less = unused(most, lent).min(upward(excess));
                let Some(of_most) = lent.get_mut(most).filter(|_| less > 0) else { break };
                *of_most = of_most.saturating_sub(less);
            }
        }
    }

    /// The job to be ended, since the node runs short and only that gives its owners what they have reserved: of the user whose scavengers
    /// use most of what they were lent, the one that uses most of it. One that uses no more than its own limit is an owner of that. Nobody
    /// is ended while all that is lent and in use is what nobody has reserved.
    pub fn job_to_end(&self, jobs: &[JobMemory]) -> Option<usize> {
        let in_use: Vec<u64> = jobs.iter().map(JobMemory::lent_in_use).collect();
        let all = in_use.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        if self.free >= self.short() || all <= self.unreserved(jobs, self.reserve.max(self.system)) {
            return None;
        }
        let scavengers = || jobs.iter().zip(&in_use).filter(|(job, bytes)| job.may_end && **bytes > 0);
        let of_user = |uid| {
            let theirs = scavengers().filter(|(job, _)| job.uid == uid);
            theirs.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
        };
        let (first, _) = scavengers().max_by_key(|(job, bytes)| (of_user(job.uid), **bytes))?;
        jobs.iter().position(|job| std::ptr::eq(job, first))
    }
}

/// How much of what is lent is of what nobody has reserved: scavengers have what is untouched first.
fn of_unreserved(jobs: &[JobMemory], lent: &[u64], untouched: u64) -> u64 {
    let [of_scavengers, of_others] = [true, false].map(|which| sum_of(jobs, lent, which));
    of_others.saturating_add(of_scavengers.saturating_sub(untouched))
}

/// What may be lent more, in bytes: to each, and to a scavenger.
#[derive(Debug, Clone, Copy)]
struct LendRoom {
    of_all: u64,
    of_scavengers: u64,
}

/// What is lent to scavengers, or to the others.
fn sum_of(jobs: &[JobMemory], lent: &[u64], are_scavengers: bool) -> u64 {
    let these = jobs.iter().zip(lent).filter(|(job, _)| job.is_scavenger == are_scavengers);
    these.fold(0, |sum: u64, (_, lent)| sum.saturating_add(*lent))
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

    const NODE: NodeMemory = NodeMemory {
        whole: 8192 * MIB,
        reserve: 512 * MIB,
        system: 0,
        pool: 4096 * MIB,
        reserved: 0,
        untouched: 0,
        free: 8192 * MIB,
        lends_more: true,
    };

    /// May grow by half, and uses and has so many MiB.
    fn job(grant: u64, limit: u64, used: u64) -> JobMemory {
        let [grant, limit, used] = [grant, limit, used].map(|mib| mib * MIB);
        let most = Percent::from_hundredths(15_000);
        JobMemory { grant, limit, used, most, is_growing: false, is_scavenger: false, may_end: false, uid: 7 }
    }

    fn scavenger(grant: u64, limit: u64, used: u64) -> JobMemory {
        let most = Percent::from_hundredths(100_000);
        JobMemory { is_scavenger: true, may_end: true, most, ..job(grant, limit, used) }
    }

    fn limits(node: NodeMemory, jobs: &[JobMemory]) -> Vec<u64> {
        node.divide(jobs).iter().map(|limit| limit / MIB).collect()
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
    fn who_is_lent_memory_and_does_not_use_it_is_an_owner() {
        assert_eq!(
            [(800, 800), (900, 800), (900, 801)].map(|(limit, used)| job(800, limit, used).uses_loan()),
            [false, false, true]
        );
    }

    #[test]
    fn what_is_reserved_is_not_lent() {
        let full = NodeMemory { reserved: (8192 - 512 - 800) * MIB, ..NODE };
        assert_eq!(limits(full, &[job(800, 800, 800)]), [800]);
        let busy = NodeMemory { system: (8192 - 800 - 40) * MIB, ..NODE };
        assert_eq!(limits(busy, &[job(800, 800, 800)]), [840], "the system uses more than is kept for it");
        assert_eq!(limits(busy, &[job(800, 900, 850)]), [900], "that takes nothing back");
        assert_eq!(limits(NodeMemory { pool: 0, ..NODE }, &[job(800, 800, 800)]), [800]);
        let lent = NodeMemory { reserved: (8192 - 512 - 1700) * MIB, ..NODE };
        assert_eq!(limits(lent, &[job(800, 900, 900), job(800, 800, 800)]), [900, 800], "it is lent already");
    }

    #[test]
    fn while_not_all_is_known_nothing_more_is_lent_and_owners_still_come_first() {
        let unknown = NodeMemory { lends_more: false, ..NODE };
        let jobs = [JobMemory { is_growing: true, ..job(800, 1200, 900) }, job(800, 800, 800)];
        assert_eq!(limits(unknown, &jobs), [1200, 800], "who grows keeps it, and nobody is lent more");
        let owned = NodeMemory { reserved: (8192 - 512 - 1600) * MIB, ..unknown };
        assert_eq!(limits(owned, &jobs), [900, 800], "a new owner has what nobody uses");
    }

    #[test]
    fn a_new_job_has_back_what_nobody_uses_and_nobody_loses_a_piece_in_use() {
        let new = |mib: u64| NodeMemory { reserved: (8192 - 512 - 2400 - mib) * MIB, ..NODE };
        let growing = |limit, used| JobMemory { is_growing: true, ..job(800, limit, used) };
        let jobs = [growing(1200, 1101), growing(1000, 850), growing(1000, 0)];
        assert_eq!(limits(new(800), &jobs), [1200, 1000, 1000]);
        assert_eq!(limits(new(700), &jobs), [1200, 1000, 900]);
        assert_eq!(limits(new(550), &jobs), [1200, 950, 800]);
        assert_eq!(limits(new(500), &jobs), [1200, 900, 800]);
        assert_eq!(limits(new(0), &jobs), [1200, 900, 800]);
    }

    #[test]
    fn a_smaller_pool_costs_nobody_what_is_in_use() {
        let none = NodeMemory { pool: 0, ..NODE };
        assert_eq!(limits(none, &[job(800, 1200, 1100), job(800, 900, 500)]), [1200, 800]);
        let less = JobMemory { most: Percent::HUNDRED, ..job(800, 1200, 1050) };
        assert_eq!(limits(NODE, &[less]), [1100], "nor a smaller share");
    }

    #[test]
    fn who_has_least_is_lent_first() {
        let scarce = NodeMemory { pool: 200 * MIB, ..NODE };
        assert_eq!(limits(scarce, &[job(800, 900, 890), job(800, 800, 790)]), [900, 900]);
    }

    /// All is reserved, and 1000 MiB of that are untouched.
    fn full(jobs: u64) -> NodeMemory {
        NodeMemory { reserved: (8192 - 512 - jobs) * MIB, untouched: 1000 * MIB, ..NODE }
    }

    #[test]
    fn what_is_reserved_and_untouched_is_lent_to_scavengers_alone() {
        let jobs = [scavenger(80, 80, 80), job(800, 800, 800)];
        assert_eq!(limits(full(880), &jobs), [200, 800]);
        assert_eq!(limits(NodeMemory { untouched: 0, ..full(880) }, &jobs), [80, 800]);
        // What is not there is not lent, whoever has it reserved.
        assert_eq!(limits(NodeMemory { free: 522 * MIB, ..full(880) }, &jobs), [90, 800]);
        // What nobody has reserved is there for all, and a scavenger that has what is untouched leaves it to the others.
        let jobs = [scavenger(80, 580, 580), job(800, 800, 800)];
        let partly = NodeMemory { untouched: 500 * MIB, ..full(1180) };
        assert_eq!(limits(partly, &jobs), [580, 1100], "the scavenger has nothing of it");
        assert_eq!(limits(NodeMemory { pool: 510 * MIB, ..partly }, &jobs), [580, 810]);
    }

    #[test]
    fn a_scavenger_is_lent_so_early_that_it_may_fill_several_pieces_between_two_looks() {
        let lent = |job: JobMemory| (limits(NODE, &[job])[0], job.needs_more());
        assert_eq!([lent(scavenger(80, 80, 40)), lent(job(80, 80, 40))], [(80, false); 2]);
        // 160 is the most that the other one may have.
        assert_eq!([lent(scavenger(80, 80, 41)), lent(job(80, 80, 41))], [(170, true), (80, false)]);
        assert_eq!([lent(scavenger(80, 170, 131)), lent(scavenger(80, 170, 125))], [(260, true), (170, false)]);
        // What it does not need any more goes back all the same.
        assert_eq!([lent(scavenger(80, 260, 60)), lent(scavenger(80, 260, 30))], [(110, false), (80, false)]);
    }

    #[test]
    fn what_is_touched_again_goes_back_from_scavengers_first() {
        let growing = |job| JobMemory { is_growing: true, ..job };
        let jobs = [growing(scavenger(80, 780, 200)), growing(job(800, 1200, 800))];
        let touched = |left: u64| NodeMemory { untouched: left * MIB, ..full(1280) };
        assert_eq!(limits(touched(700), &jobs), [780, 1200]);
        assert_eq!(limits(touched(500), &jobs), [580, 1200]);
        assert_eq!(limits(touched(0), &jobs), [200, 1080], "what is in use stays, and is nobody else's");
        // A new owner has what was lent of the unreserved from all.
        let new = NodeMemory { reserved: (8192 - 512 - 1080) * MIB, ..touched(100) };
        assert_eq!(limits(new, &jobs), [200, 980]);
    }

    #[test]
    fn a_scavenger_is_ended_only_while_the_node_is_short_and_an_owner_never() {
        let short = NodeMemory { free: 255 * MIB, ..full(1040) };
        let jobs = [job(800, 1200, 1200), scavenger(80, 280, 120), scavenger(80, 280, 200), scavenger(80, 280, 80)];
        assert_eq!(short.job_to_end(&jobs), Some(2));
        assert_eq!(NodeMemory { free: 256 * MIB, ..short }.job_to_end(&jobs), None);
        assert_eq!(short.job_to_end(&[jobs[0], jobs[3]]), None, "each has what is its own, or is no scavenger");
        // One that cannot be seen, or that does not die.
        let unseen = JobMemory { may_end: false, ..jobs[2] };
        assert_eq!(short.job_to_end(&[jobs[0], jobs[1], unseen]), Some(1));
        // A node may well be filled by what nobody has reserved.
        let unreserved = NodeMemory { reserved: 0, ..short };
        assert_eq!(unreserved.job_to_end(&jobs), None);
        // Many small ones of one user are together the largest.
        let others = JobMemory { uid: 8, ..scavenger(80, 280, 170) };
        let many = [jobs[2], others, JobMemory { used: 180 * MIB, ..others }];
        let full = NodeMemory { reserved: (8192 - 512 - 240) * MIB, ..short };
        assert_eq!(full.job_to_end(&many), Some(2));
    }

    #[test]
    fn what_is_promised_and_is_not_there_is_nobodys() {
        let promised = |more: u64| NodeMemory { reserved: (8192 - 512 - 80 + more) * MIB, ..full(80) };
        assert_eq!(limits(promised(985), &[scavenger(80, 80, 80)]), [95]);
        assert_eq!(limits(promised(1000), &[scavenger(80, 80, 80)]), [80]);
        let growing = JobMemory { is_growing: true, ..scavenger(80, 380, 100) };
        assert_eq!(limits(promised(900), &[growing]), [180], "what others need comes back");
    }

    fn any_job() -> impl Strategy<Value = JobMemory> {
        let amounts = (1_u64..500_000, 0_u64..2000, 0_u64..4000, 10_000_u32..30_000);
        (amounts, any::<(bool, bool, bool)>(), 0_u32..3).prop_map(
            |((grant, lent, used, most), (is_growing, is_scavenger, is_known), uid)| {
                // It may have been lent more than it may have by now.
                let (grant, lent) = (grant * 4096, lent * 20 * PAGE);
                let limit = grant + lent;
                let most = Percent::from_hundredths(most);
                JobMemory {
                    grant,
                    limit,
                    used: (used * 1_000_000).min(limit),
                    most,
                    is_growing,
                    is_scavenger,
                    may_end: is_scavenger && is_known,
                    uid,
                }
            },
        )
    }

    fn any_node() -> impl Strategy<Value = NodeMemory> {
        (prop::array::uniform7(0_u64..40_000), any::<bool>()).prop_map(
            |([whole, reserve, system, pool, reserved, untouched, free], lends_more)| {
                let amounts = [whole, reserve / 8, system / 4, pool / 4, reserved / 4, untouched / 8, free / 2];
                let [whole, reserve, system, pool, reserved, untouched, free] = amounts.map(|mib| mib * MIB);
                NodeMemory { whole, reserve, system, pool, reserved, untouched, free, lends_more }
            },
        )
    }

    proptest! {
        #[test]
        fn no_owner_loses_and_no_more_is_lent_than_there_is(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            let limits = node.divide(&jobs);
            let granted: u64 = node.reserved + jobs.iter().map(|job| job.grant).sum::<u64>();
            let unreserved = node.whole.saturating_sub(node.reserve).saturating_sub(granted);
            prop_assert_eq!(limits.len(), jobs.len());
            let sum = |of: &dyn Fn(u64, &JobMemory) -> u64| -> u64 { limits.iter().zip(&jobs).map(|(limit, job)| of(*limit, job)).sum() };
            let in_use: u64 = jobs.iter().map(JobMemory::lent_in_use).sum();
            let of_others = |job: &JobMemory, bytes: u64| if job.is_scavenger { 0 } else { bytes };
            let used_by_others = jobs.iter().map(|job| of_others(job, job.lent_in_use())).sum();
            let lent = sum(&|limit, job| limit - job.grant);
            prop_assert!(lent <= (unreserved.max(used_by_others) + node.untouched).max(in_use), "{:?}", limits);
            // What is untouched is for scavengers alone.
            prop_assert!(sum(&|limit, job| of_others(job, limit - job.grant)) <= unreserved.max(used_by_others), "{:?}", limits);
            // Also before any has given back; and while not all is known, nothing more is lent.
            let before: u64 = jobs.iter().map(JobMemory::lent).sum();
            let raised = sum(&|limit, job| limit.max(job.limit) - job.grant);
            let room = if node.lends_more { (unreserved + node.untouched).min(node.pool) } else { 0 };
            prop_assert!(raised <= room.max(before));
            let others_before = jobs.iter().map(|job| of_others(job, job.lent())).sum();
            let raised = sum(&|limit, job| of_others(job, limit.max(job.limit) - job.grant));
            prop_assert!(raised <= unreserved.max(others_before));
            // What is lent more is there.
            let more = sum(&|limit, job| if job.is_scavenger { limit.saturating_sub(job.limit) } else { 0 });
            prop_assert!(more <= node.free.saturating_sub(node.reserve));
            // Only one that has nothing of its own to lose is ended.
            let ended = node.job_to_end(&jobs).map(|at| jobs[at]);
            prop_assert!(ended.is_none_or(|job| job.may_end && job.used > job.grant && node.free < node.reserve));
            for (limit, job) in limits.iter().zip(&jobs) {
                prop_assert!(*limit >= job.grant && *limit <= job.most.of(job.grant).max(job.limit));
                // Nobody loses what is in use.
                prop_assert!(*limit >= job.used.min(job.limit));
                // What is lent more goes to those alone that need it.
                prop_assert!(*limit <= job.limit || job.needs_more());
            }
        }

        #[test]
        fn all_that_is_lent_comes_back(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            // They use no more, and time passes.
            let calm = |job: &JobMemory| JobMemory { used: 0, is_growing: false, ..*job };
            let limits = node.divide(&jobs.iter().map(calm).collect::<Vec<_>>());
            prop_assert!(limits.iter().zip(&jobs).all(|(limit, job)| *limit == job.grant));
            // A new job that has reserved all has all that nobody uses.
            let limits = NodeMemory { reserved: node.whole, untouched: 0, ..node }.divide(&jobs);
            prop_assert!(limits.iter().zip(&jobs).all(|(limit, job)| *limit == job.grant + job.lent_in_use()));
            let limits = NodeMemory { pool: 0, ..node }.divide(&jobs);
            prop_assert!(limits.iter().zip(&jobs).all(|(limit, job)| *limit <= job.limit));
        }

        #[test]
        fn looks_come_to_rest(node in any_node(), jobs in prop::collection::vec(any_job(), 0..9)) {
            let mut jobs = jobs;
            for _ in 0..40 {
                let limits = node.divide(&jobs);
                jobs.iter_mut().zip(&limits).for_each(|(job, limit)| {
                    (job.limit, job.is_growing) = (*limit, false);
                    job.used = job.used.min(*limit);
                });
            }
            let limits = node.divide(&jobs);
            prop_assert!(limits.iter().zip(&jobs).all(|(limit, job)| *limit == job.limit), "{:?} {:?}", limits, jobs);
        }
    }
}
