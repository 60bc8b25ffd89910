// SPDX-License-Identifier: GPL-2.0-or-later
//! How many ways of a cache a share is, which of them, and which step of memory bandwidth: numbers alone.

use jobfence::config::Percent;

/// Hundredths of a percent in all of it.
const WHOLE: u64 = 10_000;

/// The ways of one L3 cache, as `info/L3` says (Documentation/filesystems/resctrl.rst). Bit N is way N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheWays {
    /// `cbm_mask`: those that there are.
    pub all: u64,
    /// `min_cbm_bits`: the fewest that a group may have, at least 1 here. AMD's CPUs say 0, and a group that fills no way is not wanted.
    pub least: u32,
    /// `shareable_bits`: those that devices fill, too.
    pub of_devices: u64,
}

impl CacheWays {
    /// How many there are.
    pub fn count(&self) -> u32 {
        self.all.count_ones()
    }

    /// So many are a share, rounded up.
    pub fn of(&self, share: Percent) -> u32 {
        let ways = (u64::from(self.count()) * share.of(WHOLE)).div_ceil(WHOLE);
        u32::try_from(ways).unwrap_or(u32::MAX).max(self.least).min(self.count())
    }

    /// Chooses so many ways in a row, or as many as there are in a row. `None`: there are not enough for any group.
    ///
    /// `exclusive`: those that the kernel gives to nobody else. `others`: what other groups have. The ways that devices fill are taken last,
    /// then those of most groups, then those with the higher numbers.
    pub fn choose(&self, ways: u32, exclusive: u64, others: &[u64]) -> Option<u64> {
        let free = self.all & !exclusive;
        (self.least..=ways).rev().find_map(|ways| {
            let all = (0..u64::BITS).filter_map(|first| in_a_row(ways, first)).filter(|mask| mask & !free == 0);
            all.min_by_key(|mask| {
                let shared = others.iter().map(|other| (other & mask).count_ones()).sum::<u32>();
                ((mask & self.of_devices).count_ones(), shared, *mask)
            })
        })
    }
}

/// A mask with so many bits from this one on. `None`: it has no room for them, or there are none.
fn in_a_row(bits: u32, first: u32) -> Option<u64> {
    (bits > 0 && first + bits <= u64::BITS).then(|| (u64::MAX >> (u64::BITS - bits)) << first)
}

/// The steps in which memory bandwidth is bounded, in percent, as `info/MB` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandwidthSteps {
    /// `min_bandwidth`: the lowest.
    pub least: u64,
    /// `bandwidth_gran`: from one to the next, at least 1.
    pub step: u64,
}

impl BandwidthSteps {
    /// The most that a group may have.
    pub const MOST: u64 = 100;

    /// The step that a share is, rounded up.
    pub fn of(&self, share: Percent) -> u64 {
        let percent = share.of(WHOLE).div_ceil(WHOLE / Self::MOST);
        let steps = percent.saturating_sub(self.least).div_ceil(self.step);
        self.least.saturating_add(steps.saturating_mul(self.step)).min(Self::MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(hundredths: u32) -> Percent {
        Percent::from_hundredths(hundredths)
    }

    /// Intel's Xeon of the Skylake kind: 11 ways, of which devices fill the upper two.
    const XEON: CacheWays = CacheWays { all: 0x7ff, least: 1, of_devices: 0x600 };

    #[test]
    fn a_share_is_rounded_up_to_ways() {
        let of = |hundredths| XEON.of(share(hundredths));
        assert_eq!([of(100), of(909), of(910), of(5000), of(9999), of(10_000)], [1, 1, 2, 6, 11, 11]);
        let two_at_least = CacheWays { all: 0xf_ffff, least: 2, of_devices: 0 };
        assert_eq!([two_at_least.of(share(100)), two_at_least.of(share(1001))], [2, 3]);
    }

    #[test]
    fn ways_of_devices_and_of_other_groups_are_taken_last() {
        assert_eq!(XEON.choose(4, 0, &[]), Some(0xf));
        assert_eq!(XEON.choose(4, 0, &[0xf]), Some(0xf0));
        assert_eq!(XEON.choose(4, 0, &[0xf, 0xf0]), Some(0x1e0), "one way of those is free");
        assert_eq!(XEON.choose(9, 0, &[]), Some(0x1ff));
        assert_eq!(XEON.choose(10, 0, &[]), Some(0x3ff));
        assert_eq!(XEON.choose(11, 0, &[0x7ff]), Some(0x7ff));
    }

    #[test]
    fn exclusive_ways_are_never_taken() {
        assert_eq!(XEON.choose(4, 0xf, &[]), Some(0xf0));
        assert_eq!(XEON.choose(4, 0b111_0111_0111, &[]), Some(0x8), "as many as there are in a row");
        assert_eq!(XEON.choose(4, 0x7ff, &[]), None);
        let two_at_least = CacheWays { all: 0xff, least: 2, of_devices: 0 };
        assert_eq!(two_at_least.choose(4, 0b1010_1010, &[]), None);
    }

    #[test]
    fn bandwidth_is_rounded_up_to_a_step() {
        let intel = BandwidthSteps { least: 10, step: 10 };
        let of = |hundredths| intel.of(share(hundredths));
        assert_eq!([of(100), of(1000), of(1001), of(2500), of(9100), of(10_000)], [10, 10, 20, 30, 100, 100]);
        let arm = BandwidthSteps { least: 3, step: 7 };
        assert_eq!([arm.of(share(100)), arm.of(share(400)), arm.of(share(10_000))], [3, 10, 100]);
    }

    fn any_ways() -> impl Strategy<Value = CacheWays> {
        (1_u32..=32, 0_u32..=4, any::<u64>()).prop_map(|(count, least, devices)| {
            let all = in_a_row(count, 0).unwrap();
            CacheWays { all, least: least.clamp(1, count), of_devices: devices & all }
        })
    }

    fn any_share() -> impl Strategy<Value = Percent> {
        (100_u32..=10_000).prop_map(share)
    }

    proptest! {
        #[test]
        fn the_kernel_takes_each_mask(
            ways in any_ways(), of in any_share(), exclusive in any::<u64>(), spare in any::<u64>(),
            others in prop::collection::vec(any::<u64>(), 0..16),
        ) {
            // Half of them are free of exclusive ways.
            let exclusive = exclusive & spare;
            let wanted = ways.of(of);
            prop_assert!(wanted >= ways.least && wanted <= ways.count());
            match ways.choose(wanted, exclusive, &others) {
                Some(mask) => {
                    let shifted = mask >> mask.trailing_zeros();
                    prop_assert_eq!(shifted & (shifted + 1), 0, "in a row: {:x}", mask);
                    prop_assert_eq!(mask & !ways.all, 0);
                    prop_assert_eq!(mask & exclusive, 0);
                    prop_assert!(mask.count_ones() >= ways.least && mask.count_ones() <= wanted);
                    prop_assert!(exclusive & ways.all != 0 || mask.count_ones() == wanted);
                }
                None => prop_assert!(exclusive & ways.all != 0),
            }
        }

        #[test]
        fn who_may_fill_more_has_no_fewer_ways(
            ways in any_ways(), one in any_share(), other in any_share(), exclusive in any::<u64>(),
            others in prop::collection::vec(any::<u64>(), 0..16),
        ) {
            let (less, more) = (one.min(other), one.max(other));
            let of = |share| ways.choose(ways.of(share), exclusive, &others).map_or(0, u64::count_ones);
            prop_assert!(of(less) <= of(more));
            // And no fewer than the share is.
            prop_assert!(u64::from(ways.of(less)) * WHOLE >= less.of(u64::from(ways.count()) * WHOLE));
        }

        #[test]
        fn bandwidth_is_a_step_and_no_less_than_the_share(
            least in 0_u64..=20, step in 1_u64..=20, one in any_share(), other in any_share(),
        ) {
            let steps = BandwidthSteps { least, step };
            let (less, more) = (one.min(other), one.max(other));
            let bandwidth = steps.of(less);
            prop_assert!(bandwidth <= steps.of(more));
            prop_assert!(bandwidth >= least && bandwidth <= 100 && bandwidth * 100 >= less.of(WHOLE));
            prop_assert!(bandwidth == 100 || (bandwidth - least).is_multiple_of(step));
        }
    }
}
