//! Where a request's time went, by its recorded path through threads and processes, and what slow
//! requests have more of than ordinary ones. Values in, figures out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// A request's row, with its path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Its host.
    pub node: String,
    /// The server's process there.
    pub pid: i64,
    /// The thread that read its first bytes.
    pub tid: i64,
    /// When it began, Unix nanoseconds.
    pub ts_ns: i64,
    /// With `ts_ns` and `number` its name on its host.
    pub connection: i64,
    /// Its number on the connection.
    pub number: i64,
    /// To the end of its answer.
    pub duration_ns: i64,
    /// Method and path; empty where they are not shown.
    pub route: String,
    /// Of HTTP.
    pub status: Option<i64>,
    /// How many requests it stands for.
    pub weight: f64,
    /// What it waited for, the first first: together its duration. Empty: there is no path.
    pub path: Vec<(Part, i64)>,
}

/// What a thread did in a part of a request's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailKind))]
pub enum Kind {
    /// Its bytes lay in the socket before anybody read them.
    Unread,
    /// It ran.
    OnCpu,
    /// It could run, and another had the CPU.
    CpuTaken,
    /// It could run, and the CPU quota of its cgroup was used up.
    Throttled,
    /// It slept.
    Asleep,
    /// It is not known what was done.
    #[default]
    Unknown,
}

/// A part of a request's time.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailPart))]
pub struct Part {
    /// What was done.
    pub kind: Kind,
    /// Who took the CPU; what it slept in; why it is not known.
    pub of: String,
    /// Who woke it, where that was no thread that is followed.
    pub woken_by: String,
    /// The program of its process; empty where names are not shown.
    pub process: String,
    /// The thread's name; of the main one "main".
    pub thread: String,
    /// Another thread waited for it in a lock, or in a queue: both are futexes.
    pub holds_lock: bool,
}

impl Part {
    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        let what = match (self.kind, self.of.as_str()) {
            (Kind::Unread, _) => return "unread in the socket: nobody read it yet".to_owned(),
            (Kind::Unknown, why) => return format!("not known: {}", unknown(why)),
            (Kind::OnCpu, _) => "ran".to_owned(),
            // By nobody, or by whom is not shown.
            (Kind::CpuTaken, "") => "ready to run, without a CPU".to_owned(),
            (Kind::CpuTaken, by) => format!("ready to run, the CPU taken by {by}"),
            (Kind::Throttled, _) => "held back by the CPU quota of its cgroup".to_owned(),
            (Kind::Asleep, why) => match (why, self.woken_by.as_str()) {
                ("timer", _) => "asleep in a timer".to_owned(),
                ("io", _) => "asleep, waiting for a disk".to_owned(),
                ("lock", "interrupt") => "asleep in a lock or queue, until its time ran out".to_owned(),
                ("lock", _) => "asleep in a lock or queue".to_owned(),
                ("network", _) => "asleep, waiting for the network".to_owned(),
                ("events", "interrupt") => "asleep, waiting for events (network or timers)".to_owned(),
                ("events", _) => "asleep, waiting for events".to_owned(),
                ("pipe", _) => "asleep on a pipe from what is not followed".to_owned(),
                ("fault", _) => "asleep in a page fault".to_owned(),
                ("child", _) => "asleep until a child process ends".to_owned(),
                ("device", _) => "asleep in a device's driver".to_owned(),
                (other, _) => format!("asleep ({other})"),
            },
        };
        let lock = if self.holds_lock { ", while another waited in a lock or queue" } else { "" };
        format!("{what}{}{lock}", self.place())
    }

    /// Which thread, in words.
    fn place(&self) -> String {
        let thread = match self.thread.as_str() {
            "" => return String::new(),
            "main" => "main thread".to_owned(),
            name if self.process.split(' ').next() == Some(name) => "another thread".to_owned(),
            name => format!("thread {name}"),
        };
        format!(", {thread} of {}", self.process)
    }

    /// Under its thread's own name where only one thread has it, else under the pool's.
    pub(super) fn of_threads(self, names: Option<&BTreeSet<&str>>) -> Part {
        let only = names.filter(|names| names.len() == 1).and_then(|names| names.first());
        let thread = only.map_or_else(|| self.thread.clone(), |name| (*name).to_owned());
        Part { thread, ..self }
    }

    /// With a pattern in place of a number at the end of the thread's name: pools have many alike.
    pub(super) fn of_pool(&self) -> Part {
        let name = self.thread.trim_end_matches(|c: char| c.is_ascii_digit());
        let thread = if name.len() < self.thread.len() { format!("{name}*") } else { self.thread.clone() };
        Part { thread, ..self.clone() }
    }
}

/// Why a part is not known, in words.
pub(super) fn unknown(why: &str) -> &'static str {
    match why {
        "overwritten" => "too much happened meanwhile, and the kernel's record of threads was written over",
        "too_many" => "more threads took turns than are looked into",
        "short" => "many short stretches, of which only the longest are kept",
        "not_recorded" => "no path was recorded",
        _ => "a thread of it was not followed yet, or its turn was not seen",
    }
}

/// The parts of a request: together its duration.
pub(super) fn parts(request: &Request) -> BTreeMap<Part, i64> {
    let mut parts = BTreeMap::new();
    let mut left_ns = request.duration_ns;
    for (part, ns) in &request.path {
        *parts.entry(part.of_pool()).or_default() += ns;
        left_ns -= ns;
    }
    if left_ns > 0 {
        let part = Part { of: "not_recorded".to_owned(), ..Part::default() };
        *parts.entry(part).or_default() += left_ns;
    }
    parts
}

/// What slow requests have more of.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailExcess))]
pub struct Excess {
    /// Mean duration of the slow ones,
    pub slow_ns: i64,
    /// and of the ordinary ones.
    pub ordinary_ns: i64,
    /// Whether that is enough to be anything but the slowest of a healthy server.
    pub grown: bool,
    /// Parts by what they add to the mean, the largest first.
    pub parts: Vec<More>,
}

/// A part that slow requests have more of.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailMore))]
pub struct More {
    /// Who did what.
    pub part: Part,
    /// Nanoseconds a request.
    pub more_ns: i64,
    /// Of all that slow requests take longer, 0 to 1.
    pub share: f64,
    /// `part` in words.
    pub text: String,
}

/// Slow requests take at least so much longer than ordinary ones, and so many times as long: the
/// slowest hundredth is slower anywhere, by what happens now and then on any host.
const LEAST_MORE_NS: f64 = 1_000_000.0;
const LEAST_TIMES: f64 = 2.0;

/// Compares slow requests with ordinary ones. None where either is missing, or they are no slower.
pub(super) fn excess(slow: &[Request], ordinary: &[Request]) -> Option<Excess> {
    let (slow_ns, slow_parts) = mean(slow)?;
    let (ordinary_ns, ordinary_parts) = mean(ordinary)?;
    let all_ns = slow_ns - ordinary_ns;
    if all_ns <= 0.0 {
        return None;
    }
    let names = names(slow);
    let mut parts: Vec<More> = slow_parts
        .into_iter()
        .map(|(part, ns)| {
            let more_ns = ns - ordinary_parts.get(&part).copied().unwrap_or(0.0);
            let part = part.clone().of_threads(names.get(&part));
            More { text: part.words(), part, more_ns: more_ns as i64, share: more_ns / all_ns }
        })
        .filter(|more| more.more_ns > 0)
        .collect();
    parts.sort_by_key(|more| std::cmp::Reverse(more.more_ns));
    let grown = all_ns >= LEAST_MORE_NS && slow_ns >= LEAST_TIMES * ordinary_ns;
    Some(Excess { slow_ns: slow_ns as i64, ordinary_ns: ordinary_ns as i64, grown, parts })
}

/// The names of the threads that a part is of.
pub(super) type Names<'a> = BTreeMap<Part, BTreeSet<&'a str>>;

/// Those of the requests' parts.
pub(super) fn names(requests: &[Request]) -> Names<'_> {
    let mut names = Names::new();
    for (part, _) in requests.iter().flat_map(|request| &request.path) {
        names.entry(part.of_pool()).or_default().insert(&part.thread);
    }
    names
}

/// The mean duration, and of each part.
pub(super) fn mean(requests: &[Request]) -> Option<(f64, BTreeMap<Part, f64>)> {
    let weight: f64 = requests.iter().map(|request| request.weight).sum();
    if weight <= 0.0 {
        return None;
    }
    let (mut duration_ns, mut sums) = (0.0, BTreeMap::new());
    for request in requests {
        duration_ns += request.weight * request.duration_ns as f64;
        for (part, ns) in parts(request) {
            *sums.entry(part).or_insert(0.0) += request.weight * ns as f64;
        }
    }
    sums.values_mut().for_each(|sum| *sum /= weight);
    Some((duration_ns / weight, sums))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn part(kind: Kind, of: &str, thread: &str) -> Part {
        Part { kind, of: of.into(), process: "python3 engine.py".into(), thread: thread.into(), ..Part::default() }
    }

    fn request(path: Vec<(Part, i64)>) -> Request {
        let duration_ns = path.iter().map(|(_, ns)| ns).sum();
        Request { node: "n1".into(), duration_ns, weight: 1.0, path, ..Request::default() }
    }

    #[test]
    fn what_slow_requests_have_more_of_is_a_thread_and_what_it_did() {
        let ran = || (part(Kind::OnCpu, "", "main"), 2 * MS);
        let slow = [
            request(vec![ran(), (part(Kind::Asleep, "timer", "worker-2"), 50 * MS)]),
            request(vec![ran(), (part(Kind::Asleep, "timer", "worker-2"), 46 * MS)]),
        ];
        let ordinary = Request { weight: 50.0, ..request(vec![ran()]) };
        let found = excess(&slow, std::slice::from_ref(&ordinary)).unwrap();
        assert_eq!((found.slow_ns, found.ordinary_ns, found.grown), (50 * MS, 2 * MS, true));
        let [more] = &found.parts[..] else { panic!("{found:?}") };
        assert_eq!(
            (more.part.words(), more.more_ns),
            ("asleep in a timer, thread worker-2 of python3 engine.py".into(), 48 * MS)
        );
        assert!((more.share - 1.0).abs() < 1e-9);
        assert_eq!(excess(std::slice::from_ref(&ordinary), &slow), None, "no slower");
        assert_eq!(excess(&[], &[ordinary]), None);
    }

    #[test]
    fn threads_of_a_pool_are_one_part() {
        let of = |thread| request(vec![(part(Kind::OnCpu, "", thread), 30 * MS)]);
        let found =
            excess(&[of("pool_1"), of("pool_2")], &[request(vec![(part(Kind::OnCpu, "", "main"), MS)])]).unwrap();
        assert_eq!(found.parts.len(), 1);
        assert_eq!(found.parts[0].part.words(), "ran, thread pool_* of python3 engine.py");
    }

    #[test]
    fn the_slowest_of_a_healthy_server_have_no_cause() {
        let of = |ns| request(vec![(part(Kind::OnCpu, "", "main"), ns)]);
        let grown = |slow, ordinary| excess(&[of(slow)], &[of(ordinary)]).unwrap().grown;
        assert!(!grown(15 * MS, 10 * MS) && !grown(MS, MS / 10) && grown(25 * MS, 10 * MS));
    }

    #[test]
    fn what_has_no_path_is_not_guessed() {
        let mut one = request(vec![(part(Kind::OnCpu, "", "main"), 2 * MS)]);
        one.duration_ns = 9 * MS;
        let unknown = Part { of: "not_recorded".into(), ..Part::default() };
        assert_eq!(parts(&one)[&unknown], 7 * MS);
        assert_eq!(parts(&one).values().sum::<i64>(), 9 * MS);
    }

    #[test]
    fn threads_in_words() {
        let mut one = part(Kind::OnCpu, "", "python3");
        assert_eq!(one.words(), "ran, another thread of python3 engine.py");
        one.thread = "main".into();
        one.holds_lock = true;
        assert_eq!(one.words(), "ran, main thread of python3 engine.py, while another waited in a lock or queue");
        one.thread = String::new();
        assert_eq!(one.words(), "ran, while another waited in a lock or queue");
    }
}
