// SPDX-License-Identifier: GPL-2.0-or-later
//! The group of one job: made, given its shares, and read back.

use jobfence::error::{Error, Result};
use jobfence::sys::dir::Dir;
use nix::errno::Errno;

use super::files::JobCache;
use super::plan::{self, PresentGroups};
use super::schemata::Schemata;
use super::tree::{ResctrlFeatures, ResctrlTree, group_name, number_of, schemata_of};
use crate::table::printable;

/// Gives the job what is wanted as far as that can be, and notes down what it has. Without any of it, it has no group.
pub fn apply(tree: &ResctrlTree, features: &ResctrlFeatures, job: &mut JobCache) -> Result<()> {
    let wanted = job.wanted;
    (job.schemata, job.refused) = (Schemata::default(), Vec::new());
    job.ways = features.cache.map_or(0, |ways| ways.count());
    let cannot = [
        wanted.cache_setting().zip(plan::no_cache(features)),
        wanted.bandwidth_setting().zip(plan::no_bandwidth(features, tree.is_in_mebibytes)),
    ];
    let cannot = cannot.map(|cannot| cannot.map(|(setting, why)| format!("{setting} bounds nothing: {why}")));
    let is_possible =
        [wanted.cache.is_some() && cannot[0].is_none(), wanted.bandwidth.is_some() && cannot[1].is_none()];
    job.refused.extend(cannot.into_iter().flatten());
    if is_possible == [false; 2] {
        return tree.remove(job.inode);
    }
    let name = group_name(job.inode);
    let group = match tree.root.ensure(&name) {
        Ok(group) => group,
        Err(error) => {
            job.refused.push(no_group(tree, features, job, error));
            return Ok(());
        }
    };
    let present = PresentGroups {
        own: schemata_of(&group)?,
        others: tree.others(&name)?,
        exclusive: tree.exclusive(&features.resources)?,
    };
    let planned = [
        wanted.cache.filter(|_| is_possible[0]).map(|share| plan::cache(features, &present, share)),
        wanted.bandwidth.filter(|_| is_possible[1]).map(|share| plan::bandwidth(features, &present.own, share)),
    ];
    for (planned, setting) in planned.into_iter().zip([wanted.cache_setting(), wanted.bandwidth_setting()]) {
        let Some((planned, setting)) = planned.zip(setting) else { continue };
        // Each by itself: if the kernel refuses one, the job has the other.
        match planned.and_then(|planned| set(tree, &group, &planned)) {
            Ok(has) => job.schemata.extend(has),
            Err(why) => {
                let job_name = printable(&job.job);
                job.refused.push(format!("{setting} does not bound job {job_name}: {why}"));
            }
        }
    }
    // A group that bounds nothing is one that another job may need.
    if job.schemata.is_empty() { tree.remove(job.inode) } else { Ok(()) }
}

/// Writes it, and returns what the kernel says that the group has of it. The kernel takes all lines of one write or none.
fn set(tree: &ResctrlTree, group: &Dir, planned: &Schemata) -> Result<Schemata, String> {
    group.write("schemata", &planned.to_string()).map_err(|error| tree.explained(error))?;
    let now = schemata_of(group).map_err(|error| error.to_string())?;
    let has = now.of_the_resources_of(planned);
    if has.is_as_planned(planned) {
        Ok(has)
    } else {
        Err(format!("the group was given {}, and has {}", one_line(planned), one_line(&has)))
    }
}

fn one_line(schemata: &Schemata) -> String {
    schemata.to_string().trim_end().replace('\n', " ")
}

/// Why a job has no group of its own. That is no failure of the job.
fn no_group(tree: &ResctrlTree, features: &ResctrlFeatures, job: &JobCache, error: Error) -> String {
    let is_full = error.kernel_errno() == Some(Errno::ENOSPC);
    let mut why = tree.explained(error);
    if is_full
        && let Some(most) = features.groups
        && let Ok(groups) = tree.groups()
    {
        let ours = groups.iter().filter(|name| number_of(name).is_some()).count();
        why = format!(
            "the CPU has {most} groups: {ours} are jobs', {} are others', and one is for all else ({why})",
            groups.len() - ours
        );
    }
    format!("job {} has no group of resctrl, and is not bounded: {why}", printable(&job.job))
}

#[cfg(test)]
mod tests {
    use super::super::plan::WantedShares;
    use super::super::tree::tests::{INTEL, tree};
    use super::*;
    use jobfence::config::Percent;

    fn job(cache: u32, bandwidth: u32) -> JobCache {
        let share = |hundredths| (hundredths > 0).then(|| Percent::from_hundredths(hundredths));
        let wanted = WantedShares { cache: share(cache), bandwidth: share(bandwidth) };
        JobCache { job: "7".into(), inode: 9, wanted, ..JobCache::default() }
    }

    fn applied(tree: &ResctrlTree, mut job: JobCache) -> JobCache {
        apply(tree, &tree.features().unwrap(), &mut job).unwrap();
        job
    }

    #[test]
    fn what_the_cpu_cannot_is_said_and_takes_no_group() {
        let (_temp, cache_alone) = tree(&INTEL[..4]);
        let bandwidth = applied(&cache_alone, job(0, 5000));
        assert!(bandwidth.refused[0].contains("MemoryBandwidthPercent=50%"), "{:?}", bandwidth.refused);
        assert!(cache_alone.groups().unwrap().is_empty());
        let (_temp, mut mebibytes) = tree(&INTEL[4..]);
        mebibytes.is_in_mebibytes = true;
        let both = applied(&mebibytes, job(2500, 5000));
        assert_eq!(both.refused.len(), 2, "{:?}", both.refused);
        assert!(both.refused[0].contains("no L3") && both.refused[1].contains("mba_MBps"));
        assert!(mebibytes.groups().unwrap().is_empty());
    }
}
