//! Follows what members publish: who runs which job, and the verdicts of its judges; and passes
//! changes of these on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gossip::{Member, MemberList};
use record::steady_now_ns;
use standing::{Change, JUDGES, JobVerdict, in_order};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::roster::{Roster, jobs_of};
use super::{Current, is_fresh, verdicts_job};

/// Members are looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// And at least.
const LOOK_AT_LEAST: Duration = Duration::from_millis(500);

/// Follows the members until `stop`. `all`: changes of verdicts that this host has asked for are
/// passed on, too.
pub(super) async fn follow(shared: Arc<Shared>, all: bool, news: mpsc::Sender<Current>, stop: CancellationToken) {
    let own = shared.identity.node().to_string();
    let mut members = shared.coordinator.gossip.watch();
    let mut roster = Roster::default();
    let mut read: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut changes: BTreeMap<u64, Change> = BTreeMap::new();
    let mut pace = tokio::time::interval(LOOK_EVERY);
    // The members and own jobs that were looked at last.
    let mut looked_at: Option<(MemberList, BTreeSet<u64>)> = None;
    loop {
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            () = shared.standing.look.notified() => {}
            () = tokio::time::sleep(LOOK_AT_LEAST) => {}
            () = stop.cancelled() => return,
        }
        pace.tick().await;
        let list = Arc::clone(&members.borrow_and_update());
        let standing = &shared.standing;
        let jobs = standing.boards.jobs();
        if looked_at.as_ref().is_none_or(|(of, own_jobs)| !Arc::ptr_eq(of, &list) || *own_jobs != jobs) {
            roster.update(&own, &jobs, &list);
            standing.set_roster(&roster);
            looked_at = Some((Arc::clone(&list), jobs));
        }
        standing.boards.members(&roster, |job| shared.recording.feed().job_name(job).nranks);
        follow_clocks(&shared, &own, &roster);
        receive_verdicts(&shared, &list, &roster, &mut read);
        let mut current = standing.all();
        // Else each look of somebody would be news.
        current.retain(|current| all || standing.is_told(current.job));
        changes.retain(|job, _| current.iter().any(|current| current.job == *job));
        for current in current {
            if changes.entry(current.job).or_default().is_news(&current.standing.report.verdict)
                && let Err(mpsc::error::TrySendError::Full(current)) = news.try_send(current)
            {
                let sentence = explain::watched::sentence(&current.standing.report);
                tracing::warn!("a change of the verdict was not reported, too many wait: {sentence}");
            }
        }
        pace.reset();
    }
}

/// Follows the clocks of the reference nodes of this host's jobs.
fn follow_clocks(shared: &Shared, own: &str, roster: &Roster) {
    let standing = &shared.standing;
    let jobs = standing.boards.jobs().into_iter();
    let references: BTreeSet<String> = jobs.filter_map(|job| roster.reference(job)).map(str::to_owned).collect();
    standing.clocks.follow(&references.into_iter().filter(|reference| reference != own).collect());
}

/// The jobs of which a member publishes a verdict, and the texts.
fn verdicts_of(member: &Member) -> impl Iterator<Item = (u64, &String)> {
    let published = member.facts.extra.range("v".to_owned().."w".to_owned());
    published.filter(|(_, text)| !text.is_empty()).filter_map(|(name, text)| Some((verdicts_job(name)?, text)))
}

/// Whose verdicts of each job are believed: live hosts that say they run the job and are among its
/// judges, as everybody finds them, or among as many behind these: they take the place of judges
/// that do not answer the job's hosts, and this host may not know of that.
fn believed(list: &[Member]) -> BTreeMap<u64, BTreeSet<&str>> {
    let live = || list.iter().filter(|member| member.is_live());
    let mut hosts: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    let mut publishers: BTreeSet<(u64, &str)> = BTreeSet::new();
    for member in live() {
        for (job, _) in verdicts_of(member) {
            hosts.entry(job).or_default();
            publishers.insert((job, &member.name));
        }
    }
    for member in live() {
        for job in jobs_of(member) {
            if let Some(hosts) = hosts.get_mut(&job) {
                hosts.push(&member.name);
            }
        }
    }
    let mut believed: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for (job, hosts) in hosts {
        let mut order = in_order(job, hosts);
        order.dedup();
        order.truncate(2 * JUDGES);
        order.retain(|host| publishers.contains(&(job, *host)));
        believed.insert(job, order.into_iter().collect());
    }
    believed
}

/// Takes in the verdicts that live members publish as judges; `read` are the texts that were read.
/// Those of judges in other cells, which came otherwise, stay while they are current.
fn receive_verdicts(shared: &Shared, list: &[Member], roster: &Roster, read: &mut BTreeMap<(String, u64), String>) {
    let believed = believed(list);
    let mut published: BTreeSet<(String, u64)> = BTreeSet::new();
    for member in list.iter().filter(|member| member.is_live() && !member.is_self) {
        for (job, text) in verdicts_of(member) {
            if !believed.get(&job).is_some_and(|judges| judges.contains(member.name.as_str())) {
                continue;
            }
            let key = (member.name.clone(), job);
            published.insert(key.clone());
            if read.get(&key) == Some(text) {
                continue;
            }
            tracing::debug!("{} published its verdict of job {job:016x}", member.name);
            read.insert(key, text.clone());
            match JobVerdict::read(text) {
                // The verdict must be of the job whose key it is published under.
                Ok(verdict) if verdict.job == job => shared.standing.receive(&member.name, verdict, steady_now_ns()),
                Ok(_) => tracing::debug!("{} published one job's verdict as another's", member.name),
                Err(why) => tracing::debug!("a verdict of {}: {why}", member.name),
            }
        }
    }
    read.retain(|key, _| published.contains(key));
    let now_ns = steady_now_ns();
    shared.standing.keep_judges(|judge, job, held| {
        let came_otherwise = roster.is_elsewhere(judge) && roster.has(job, judge);
        published.contains(&(judge.to_owned(), job)) || (came_otherwise && is_fresh(held, now_ns))
    });
}

#[cfg(test)]
mod tests {
    use gossip::{MemberState, NodeFacts};

    use super::super::roster::{JOBS, jobs_text};
    use super::super::verdicts_key;
    use super::*;

    fn member(name: &str, jobs: &[u64], verdicts: &[u64]) -> Member {
        let mut extra: BTreeMap<String, String> =
            verdicts.iter().map(|job| (verdicts_key(*job), "1 {}".into())).collect();
        extra.insert(JOBS.to_owned(), jobs_text(&jobs.iter().copied().collect()));
        Member {
            name: name.into(),
            address: "127.0.0.1:1".parse().unwrap(),
            generation: 1,
            state: MemberState::Live,
            facts: Arc::new(NodeFacts { extra, ..NodeFacts::default() }),
            is_self: false,
            double: None,
            seat: gossip::Seat::default(),
        }
    }

    #[test]
    fn a_verdict_is_believed_of_the_judges_of_its_job_only() {
        let names: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
        let order = in_order(7, names.iter().map(String::as_str));
        let publish = |publishers: &[&str], others: Vec<Member>| -> Vec<Member> {
            let of = |name: &String| member(name, &[7], if publishers.contains(&name.as_str()) { &[7] } else { &[] });
            names.iter().map(of).chain(others).collect()
        };
        let of_seven = |list: &[Member]| -> Vec<String> {
            believed(list).get(&7).into_iter().flatten().map(|name| (*name).to_owned()).collect()
        };
        let sorted = |names: &[&str]| -> Vec<String> {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            names
        };
        // Who runs another job, or the same and is no judge, says nothing of it.
        let stranger = || vec![member("z", &[8], &[7, 8])];
        let list = publish(&[order[0], order[1], order[2], order[3], order[11]], stranger());
        assert_eq!(of_seven(&list), sorted(&order[..4]));
        // A judge that is silent is replaced, but not by just anybody.
        let list = publish(&[order[0], order[2], order[3], order[11]], stranger());
        assert_eq!(of_seven(&list), sorted(&[order[0], order[2], order[3]]));
        assert_eq!(of_seven(&publish(&[order[6], order[11]], stranger())), Vec::<String>::new());
        // Who says that it runs the job is one of its hosts, in the same order as all.
        let claims = vec![member("z", &[7], &[7])];
        let list = publish(&[order[0], order[1], order[2]], claims);
        let place = in_order(7, names.iter().map(String::as_str).chain(["z"])).iter().position(|name| *name == "z");
        assert_eq!(of_seven(&list).contains(&"z".to_owned()), place.unwrap() < 2 * JUDGES);
    }
}
