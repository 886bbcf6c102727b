//! Verdicts of judges in other cells. Judges gossip theirs, and gossip stays within a cell. Of a
//! judge elsewhere
//!
//! - a host of the job hears with the answers to its windows (`outbox`),
//! - any other host asks, while somebody looks or where a command waits for findings.
//!
//! In both cases it is the judge itself that says so, over a connection under its certificate, and
//! asked is only who would be believed in gossip, too. So nobody who passes a verdict on has to be
//! believed, and of a mesh of hundreds of jobs nothing is sent that nobody wants to know.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use gossip::Member;
use model::wire::{JobWindows, Published, Request, Response};
use parking_lot::Mutex;
use record::steady_now_ns;
use standing::{Held, JUDGES, JobVerdict, in_order};
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::roster::jobs_of;
use super::{ByJudge, FRESH_NS, StandingState, is_fresh};

/// Judges are asked again after so long at the earliest, as often as they publish,
const AGAIN: Duration = Duration::from_secs(2);
/// and after so many times as long as asking took: where there are very many.
const PAUSES: u32 = 4;
/// … but never longer: with the asking itself it stays below what a verdict is shown for.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// So often where a command waits for findings.
const FOR_A_COMMAND: Duration = Duration::from_secs(4);
/// Longest that a judge is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Judges that are asked at a time.
const AT_ONCE: usize = 256;
/// Jobs of which one request asks, and is answered.
const MOST_JOBS: usize = 256;

/// What is asked of others, and what they ask.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// What judges elsewhere said, by job.
    heard: Mutex<BTreeMap<u64, ByJudge>>,
    /// When they were asked last, and for how long not again. Held while they are asked.
    asked: tokio::sync::Mutex<Option<(Instant, Duration)>>,
    /// What this host publishes as a judge, by job, and since when.
    publishes: Mutex<BTreeMap<u64, (Published, Instant)>>,
}

impl Elsewhere {
    /// This host publishes this of a job, or nothing any more.
    pub(super) fn publish(&self, job: u64, text: Option<String>) {
        let mut publishes = self.publishes.lock();
        match text {
            Some(text) => {
                let published = Published { number: number_of(&text), text, for_ms: 0 };
                publishes.insert(job, (published, Instant::now()));
            }
            None => drop(publishes.remove(&job)),
        }
    }

    fn published(&self, job: u64) -> Option<Published> {
        let publishes = self.publishes.lock();
        let (published, since) = publishes.get(&job)?;
        let for_ms = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
        Some(Published { for_ms, ..published.clone() })
    }

    /// Adds what was heard to verdicts that came by themselves; of one judge the newer counts.
    pub(super) fn add_to(&self, by_job: &mut BTreeMap<u64, ByJudge>) {
        for (job, heard) in self.heard.lock().iter() {
            let verdicts = by_job.entry(*job).or_default();
            for (judge, held) in heard {
                if verdicts.get(judge).is_none_or(|known| known.at_ns < held.at_ns) {
                    verdicts.insert(judge.clone(), held.clone());
                }
            }
        }
    }

    /// Takes in what a judge says of these jobs.
    fn receive(&self, judge: &str, jobs: &[u64], said: &[Published]) {
        let mut heard = self.heard.lock();
        for published in said.iter().take(jobs.len()) {
            match read(published, jobs) {
                Ok((verdict, at_ns)) => {
                    let of_job = heard.entry(verdict.job).or_default();
                    let before = of_job.get(judge);
                    // Said once, a verdict is not newer for being asked for again.
                    if before.is_none_or(|before| before.verdict != verdict) {
                        let held = Held::after(before, verdict, at_ns);
                        of_job.insert(judge.to_owned(), held);
                    }
                }
                Err(why) => tracing::debug!("a verdict of {judge}: {why}"),
            }
        }
    }

    /// Forgets what is not current, and what is of other jobs.
    fn forget(&self, jobs: &BTreeMap<u64, Vec<&str>>) {
        let now_ns = steady_now_ns();
        self.heard.lock().retain(|job, judges| {
            judges.retain(|_, held| is_fresh(held, now_ns));
            !judges.is_empty() && jobs.contains_key(job)
        });
    }
}

/// Tells a text from others, the ones before it of all.
fn number_of(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Reads a verdict that was asked for, of one of these jobs: it, and when it was published, on this
/// host's steady clock.
///
/// # Errors
/// It is none, or of another job; in words.
pub(super) fn read(published: &Published, jobs: &[u64]) -> Result<(JobVerdict, i64), String> {
    let verdict = JobVerdict::read(&published.text)?;
    if !jobs.contains(&verdict.job) {
        return Err("it is of another job than was asked for".to_owned());
    }
    let ago_ns = (i64::from(published.for_ms) * 1_000_000).min(FRESH_NS);
    Ok((verdict, steady_now_ns().saturating_sub(ago_ns)))
}

impl StandingState {
    /// What this host publishes of these jobs as their judge.
    pub(crate) fn published(&self, jobs: &[u64]) -> Vec<Published> {
        jobs.iter().take(MOST_JOBS).filter_map(|job| self.elsewhere.published(*job)).collect()
    }

    /// As [`StandingState::answer`], with this host's verdict where the other has another.
    pub(crate) fn answer_far(&self, node: &str, windows: &JobWindows, has: u64) -> Response {
        match self.boards.receive(node, windows) {
            Ok(received) => {
                let verdict = self.elsewhere.published(windows.job).filter(|verdict| verdict.number != has);
                Response::FarWindows { received, verdict }
            }
            Err(why) => Response::Unsupported(why),
        }
    }
}

/// Who may judge each job that is none of this host's, by what members say that they run: the
/// judges first, then those that take the place of silent ones.
fn may_judge<'a>(list: &'a [Member], own_jobs: &BTreeSet<u64>) -> BTreeMap<u64, Vec<&'a str>> {
    let mut hosts: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for member in list.iter().filter(|member| member.is_live()) {
        for job in jobs_of(member).filter(|job| !own_jobs.contains(job)) {
            hosts.entry(job).or_default().push(&member.name);
        }
    }
    for (job, hosts) in &mut hosts {
        *hosts = in_order(*job, std::mem::take(hosts));
        hosts.dedup();
        hosts.truncate(2 * JUDGES);
    }
    hosts
}

/// Whom to ask of which jobs: those at these places of each that are elsewhere.
fn questions(
    jobs: &BTreeMap<u64, Vec<&str>>,
    elsewhere: &BTreeSet<&str>,
    places: Range<usize>,
) -> Vec<(String, Vec<u64>)> {
    let mut by_judge: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (job, order) in jobs {
        let there = order.iter().take(places.end).skip(places.start);
        for judge in there.filter(|judge| elsewhere.contains(*judge)) {
            by_judge.entry(judge).or_default().push(*job);
        }
    }
    let parts = by_judge.into_iter().flat_map(|(judge, jobs)| {
        jobs.chunks(MOST_JOBS).map(|jobs| (judge.to_owned(), jobs.to_vec())).collect::<Vec<_>>()
    });
    parts.collect()
}

/// Hears what judges in other cells say of the jobs of the mesh, where that was not done a moment
/// ago. (Of this host's own jobs they say it by themselves.) In a mesh of one cell nobody is asked.
pub(crate) async fn hear(shared: &Shared) {
    let list = shared.coordinator.gossip.list();
    let elsewhere: BTreeSet<&str> =
        list.iter().filter(|member| member.seat.elsewhere).map(|member| member.name.as_str()).collect();
    if elsewhere.is_empty() {
        return;
    }
    let state = &shared.standing.elsewhere;
    let mut asked = state.asked.lock().await;
    if asked.is_some_and(|(at, pause)| at.elapsed() < pause) {
        return;
    }
    let began = Instant::now();
    let mut jobs = may_judge(&list, &shared.standing.boards.jobs());
    state.forget(&jobs);
    // Those behind the judges are asked where none of these gives anything.
    for places in [0..JUDGES, JUDGES..2 * JUDGES] {
        let questions = questions(&jobs, &elsewhere, places);
        let asking: Vec<_> = questions.into_iter().map(|(judge, jobs)| ask(shared, judge, jobs)).collect();
        futures::stream::iter(asking).buffer_unordered(AT_ONCE).collect::<()>().await;
        let known: BTreeSet<u64> = shared.standing.all().into_iter().map(|current| current.job).collect();
        jobs.retain(|job, _| !known.contains(job));
    }
    *asked = Some((Instant::now(), (PAUSES * began.elapsed()).clamp(AGAIN, LONGEST_PAUSE)));
}

/// Asks a judge what it publishes, and keeps that.
async fn ask(shared: &Shared, judge: String, jobs: Vec<u64>) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    match super::ask(shared, &judge, Request::Verdicts(jobs.clone()), deadline).await {
        Ok(Response::Verdicts(said)) => shared.standing.elsewhere.receive(&judge, &jobs, &said),
        Ok(other) => tracing::debug!("verdicts of {judge}: {}", other.summary()),
        Err(why) => tracing::debug!("verdicts of {judge}: {why}"),
    }
}

/// Goes on hearing until `stop`, for a command that is run at each change of a verdict.
pub(super) async fn keep_hearing(shared: Arc<Shared>, stop: CancellationToken) {
    let heard = async {
        loop {
            tokio::time::sleep(FOR_A_COMMAND).await;
            hear(&shared).await;
            shared.standing.look_again();
        }
    };
    tokio::select! {
        () = heard => {}
        () = stop.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use gossip::{MemberState, NodeFacts, Seat};
    use model::wire::WindowsReceived;
    use standing::{JobName, Standing};
    use verdicts::Report;

    use super::super::roster::{JOBS, jobs_text};
    use super::*;

    fn member(name: &str, jobs: &[u64], elsewhere: bool, state: MemberState) -> Member {
        let extra = BTreeMap::from([(JOBS.to_owned(), jobs_text(&jobs.iter().copied().collect()))]);
        Member {
            name: name.into(),
            address: "127.0.0.1:1".parse().unwrap(),
            generation: 1,
            state,
            facts: Arc::new(NodeFacts { extra, ..NodeFacts::default() }),
            is_self: false,
            double: None,
            seat: Seat { elsewhere, ..Seat::default() },
        }
    }

    /// What a judge publishes of a job after a window.
    fn published(job: u64, window: i64) -> Published {
        let (report, silent) = (Arc::new(Report::default()), Vec::new());
        let standing = Standing { window, reference: None, report, heard: 4, silent, wall_ahead_ns: 0, age_ns: 0 };
        let text = JobVerdict { job, name: JobName::default(), standing }.text().unwrap();
        Published { number: number_of(&text), text, for_ms: 0 }
    }

    #[test]
    fn asked_are_those_who_would_be_believed_and_do_not_gossip_here() {
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let mut list: Vec<Member> = names.iter().map(|name| member(name, &[7, 8], true, MemberState::Live)).collect();
        list.push(member("dead", &[7], true, MemberState::Dead));
        list.push(member("other", &[9], true, MemberState::Live));
        let order = in_order(7, names.iter().map(String::as_str));
        let jobs = may_judge(&list, &BTreeSet::from([8]));
        assert_eq!(jobs, BTreeMap::from([(7, order[..2 * JUDGES].to_vec()), (9, vec!["other"])]), "8 runs here");
        // The second judge is in this host's cell.
        let elsewhere: BTreeSet<&str> =
            names.iter().map(String::as_str).filter(|name| *name != order[1]).chain(["other"]).collect();
        let asked = |places| questions(&jobs, &elsewhere, places);
        let of = |judges: &[&str]| -> BTreeSet<(String, Vec<u64>)> {
            judges.iter().map(|judge| ((*judge).to_owned(), vec![7])).collect()
        };
        let mut first: BTreeSet<_> = asked(0..JUDGES).into_iter().collect();
        assert!(first.remove(&("other".to_owned(), vec![9])));
        assert_eq!(first, of(&[order[0], order[2]]));
        assert_eq!(asked(JUDGES..2 * JUDGES).into_iter().collect::<BTreeSet<_>>(), of(&order[3..6]));
        let many: BTreeMap<u64, Vec<&str>> = (0..600).map(|job| (job, vec!["other"])).collect();
        let parts: Vec<usize> = questions(&many, &elsewhere, 0..1).iter().map(|(_, jobs)| jobs.len()).collect();
        assert_eq!(parts, [MOST_JOBS, MOST_JOBS, 88]);
    }

    #[test]
    fn a_verdict_counts_of_the_job_that_was_asked_for_and_is_not_newer_for_being_heard_again() {
        let (state, now_ns) = (Elsewhere::default(), steady_now_ns());
        let first = Published { for_ms: 4_000, ..published(7, 5) };
        state.receive("a", &[7], &[published(8, 5)]);
        state.receive("a", &[7], &[Published { text: "1 {".into(), ..first.clone() }]);
        let heard = || {
            let mut all = BTreeMap::new();
            state.add_to(&mut all);
            let of = |held: &Held| (held.verdict.standing.window, held.at_ns);
            all.get(&7).and_then(|judges: &ByJudge| judges.get("a")).map(of)
        };
        assert_eq!(heard(), None, "of another job, and none at all");
        state.receive("a", &[7], std::slice::from_ref(&first));
        let (window, at_ns) = heard().expect("it is heard");
        let ago_ns = 4_000_000_000;
        assert_eq!(window, 5);
        assert!((now_ns - ago_ns..=steady_now_ns() - ago_ns).contains(&at_ns), "as it was published");
        state.receive("a", &[7], &[Published { for_ms: 0, ..first }]);
        assert_eq!(heard(), Some((5, at_ns)));
        state.receive("a", &[7], &[published(7, 6)]);
        assert_eq!(heard().map(|(window, _)| window), Some(6));
        // What came by itself counts where it is newer.
        let of = |window, at_ns| Held::after(None, read(&published(7, window), &[7]).unwrap().0, at_ns);
        for (at_ns, shown) in [(now_ns - FRESH_NS, 6), (i64::MAX, 9)] {
            let mut all = BTreeMap::from([(7, BTreeMap::from([("a".to_owned(), of(9, at_ns))]))]);
            state.add_to(&mut all);
            assert_eq!(all[&7]["a"].verdict.standing.window, shown);
        }
        state.receive("a", &[7], &[Published { for_ms: u32::MAX, ..published(7, 7) }]);
        state.forget(&BTreeMap::from([(7, Vec::new())]));
        assert_eq!(heard(), None, "too old");
    }

    #[test]
    fn a_judge_gives_what_it_publishes_to_who_has_another() {
        let state = StandingState::default();
        state.boards.of_jobs(&BTreeSet::from([7]));
        let windows = JobWindows { job: 7, windows: Vec::new(), unnumbered: Vec::new(), in_slices: false };
        let given = |has| match state.answer_far("b", &windows, has) {
            Response::FarWindows { received: WindowsReceived { .. }, verdict } => verdict,
            other => panic!("{other:?}"),
        };
        assert_eq!(given(0), None);
        let text = published(7, 5).text;
        state.elsewhere.publish(7, Some(text.clone()));
        let first = given(0).expect("it has none");
        assert_eq!((&first.text, given(first.number)), (&text, None));
        assert_eq!(state.published(&[8, 7]).into_iter().map(|of| of.number).collect::<Vec<_>>(), [first.number]);
        state.elsewhere.publish(7, Some(published(7, 6).text));
        assert!(given(first.number).is_some_and(|second| second.number != first.number));
        state.elsewhere.publish(7, None);
        assert!(given(0).is_none() && state.published(&[7]).is_empty());
        let other = JobWindows { job: 8, ..windows.clone() };
        assert!(matches!(state.answer_far("b", &other, 0), Response::Unsupported(_)));
    }
}
