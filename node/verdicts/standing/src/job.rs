//! Which hosts judge a job.
//!
//! Rendezvous hashing (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996):
//! everybody who knows the job's live hosts finds the same judges without asking anybody, and where
//! one goes only its place is taken anew.

use serde::{Deserialize, Serialize};

/// Hosts that judge a job at a time; all of them where there are fewer.
pub const JUDGES: usize = 3;

/// The key of processes of which it is not known to which job they belong. Where a member of the
/// mesh does not know judges, the whole mesh goes by this key.
pub const NO_JOB: u64 = 0;

/// What a job is called by those who started it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct JobName {
    /// The scheduler's or the launcher's number or name of it, when known.
    pub job_id: Option<String>,
    /// The job step, when known.
    pub step_id: Option<String>,
    /// Its ranks; none where that is not known.
    pub nranks: Option<i32>,
}

impl JobName {
    /// Whether a user's `--job` means it.
    #[must_use]
    pub fn is(&self, job: &str) -> bool {
        let Some(id) = &self.job_id else { return false };
        let step = || self.step_id.as_deref().and_then(|step| job.strip_suffix(step)?.strip_suffix('.'));
        id == job || step() == Some(id)
    }
}

impl std::fmt::Display for JobName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.job_id, &self.step_id) {
            (Some(job), Some(step)) => write!(f, "job {job}.{step}")?,
            (Some(job), None) => write!(f, "job {job}")?,
            (None, _) => f.write_str("job without a name")?,
        }
        self.nranks.map_or(Ok(()), |nranks| write!(f, " ({nranks} ranks)"))
    }
}

/// The hosts that judge a job, of those on which it runs; the first is asked first.
#[must_use]
pub fn judges<'a>(job: u64, hosts: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = in_order(job, hosts);
    all.truncate(JUDGES);
    all
}

/// Hosts in the order in which they judge a job: by their hashes, highest first.
#[must_use]
pub fn in_order<'a>(job: u64, hosts: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all: Vec<(u64, &str)> = hosts.into_iter().map(|host| (weight(job, host), host)).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.into_iter().map(|(_, host)| host).collect()
}

/// FNV-1a of the job and the name, mixed (the finaliser of MurmurHash3): names that differ in their
/// last letter alone must not be neighbours.
fn weight(job: u64, host: &str) -> u64 {
    let bytes = job.to_le_bytes().into_iter().chain(host.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn judges_are_the_same_whoever_looks_and_only_the_place_of_one_that_goes_is_taken_anew() {
        let hosts: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
        let mut duties: BTreeMap<&str, usize> = BTreeMap::new();
        for job in 0..1_000u64 {
            let all = judges(job, hosts.iter().map(String::as_str));
            assert_eq!(all.len(), JUDGES);
            assert_eq!(all, judges(job, hosts.iter().rev().map(String::as_str)));
            let left = judges(job, hosts.iter().map(String::as_str).filter(|host| *host != all[1]));
            assert_eq!((left[0], left[1]), (all[0], all[2]));
            all.iter().for_each(|host| *duties.entry(host).or_default() += 1);
        }
        // 30 each in the mean; a Poisson figure beyond 60 comes once in 10^6.
        assert!(duties.len() == 100 && duties.values().all(|n| *n <= 60), "{duties:?}");
        assert_eq!(judges(7, ["a"]), ["a"]);
        assert!(judges(7, []).is_empty());
    }

    #[test]
    fn a_job_is_meant_by_its_number_or_by_that_of_its_step() {
        let name = JobName { job_id: Some("812".into()), step_id: Some("0".into()), nranks: Some(8) };
        assert!(name.is("812") && name.is("812.0") && !name.is("812.1") && !name.is("81"));
        assert!(!JobName::default().is("") && !name.is(".0"));
        assert_eq!(name.to_string(), "job 812.0 (8 ranks)");
    }
}
