//! Rows of what a request waited for: its path's steps, those alike summed up, with the names of
//! processes and threads. Does not own how the path is found (`path`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use record::{KERNEL, RequestSeen, RequestStretch};

use super::path::{Place, Step, Thread, What, walk};
use super::switches::Switches;
use super::wire::RawRequest;
use crate::{process, procfs};

/// Rows of a request; what is in none of its longest is one row more.
const MOST_ROWS: usize = 32;
/// A process may begin another program, or end and another have its number.
const NAMED_FOR: Duration = Duration::from_secs(10);
const MOST_NAMES: usize = 4_096;
/// In place of names that a recorder of one user's processes shows to nobody.
const ANOTHER: &str = "(another user)";
/// `RM_EVERYBODY`: of threads of the kernel's.
const NOBODY: u32 = u32::MAX;
/// Programs of which the script says more.
const INTERPRETERS: [&str; 7] = ["python", "node", "ruby", "perl", "java", "bash", "sh"];

/// When a request's first bytes had come, when they were read, and when the answer's first ones had
/// been sent; the kernel's clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    came_ns: u64,
    read_ns: u64,
    first_ns: u64,
}

/// Where a request's time went; none of one that was not answered. `seen` gets how long threads ran
/// for it, where all is known.
pub(super) fn told(
    raw: &RawRequest,
    seen: &mut RequestSeen,
    switches: &Switches,
    names: &mut Names,
) -> Vec<RequestStretch> {
    let Some(first_ns) = raw.first_ns else { return vec![] };
    let of = |(tid, count): (u32, u32), at_ns: u64, begin_ns: u64| {
        let find = |tid, count, at_ns| switches.find(tid, count, at_ns);
        walk(Place { tid, switches: count, at_ns }, begin_ns, find)
    };
    let mut steps = of(raw.first, first_ns, raw.begin_ns);
    steps.extend(of(raw.last, raw.last_ns, first_ns));
    if !steps.iter().any(|step| matches!(step.what, What::Unknown(_))) {
        let sum = |is: fn(&What) -> bool| {
            let of_these = steps.iter().filter(|step| is(&step.what));
            Some(amount(of_these.map(|step| step.until_ns - step.from_ns).sum()))
        };
        seen.cpu_ns = sum(|what| *what == What::Ran);
        seen.run_delay_ns = sum(|what| matches!(what, What::Ready { .. } | What::Throttled));
    }
    let like = RequestStretch {
        ts_ns: seen.ts_ns,
        connection: seen.connection,
        number: seen.number,
        pid: seen.of.pid,
        tenant: Arc::clone(&seen.of.tenant),
        stands_for: seen.stands_for,
        cgroup_id: seen.of.cgroup_id,
        ..RequestStretch::default()
    };
    let came_ns = raw.begin_ns.saturating_sub(seen.queued_ns.unwrap_or(0).max(0).cast_unsigned());
    rows(Times { came_ns, read_ns: raw.begin_ns, first_ns }, &steps, &like, names)
}

fn amount(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// The rows of a request. `like` has what they have in common; `steps` are its path, in order.
fn rows(times: Times, steps: &[Step], like: &RequestStretch, names: &mut Names) -> Vec<RequestStretch> {
    let mut rows: Vec<RequestStretch> = vec![];
    if times.read_ns > times.came_ns {
        let duration_ns = amount(times.read_ns - times.came_ns);
        rows.push(RequestStretch { before_first_byte: true, kind: "unread", duration_ns, parts: 1, ..like.clone() });
    }
    let mut of: HashMap<(bool, Option<Thread>, &What), usize> = HashMap::new();
    for step in steps {
        let before_first_byte = step.from_ns < times.first_ns;
        let ns = amount(step.until_ns - step.from_ns);
        let at = *of.entry((before_first_byte, step.thread, &step.what)).or_insert_with(|| {
            let after_ns = amount(step.from_ns.saturating_sub(times.came_ns));
            rows.push(RequestStretch { before_first_byte, after_ns, ..named(step, like, names) });
            rows.len() - 1
        });
        if let Some(row) = rows.get_mut(at) {
            (row.duration_ns, row.parts) = (row.duration_ns + ns, row.parts + 1);
        }
    }
    keep_longest(&mut rows, like);
    for (place, row) in (0..).zip(&mut rows) {
        row.place = place;
    }
    rows
}

/// Leaves the longest, and sums up the others.
fn keep_longest(rows: &mut Vec<RequestStretch>, like: &RequestStretch) {
    if rows.len() <= MOST_ROWS {
        return;
    }
    let mut longest: Vec<i64> = rows.iter().map(|row| row.duration_ns).collect();
    longest.sort_unstable_by_key(|ns| -ns);
    let least_ns = longest.get(MOST_ROWS).copied().unwrap_or(0);
    let mut rest = [true, false].map(|before_first_byte| RequestStretch {
        before_first_byte,
        kind: "unknown",
        reason: Some("short"),
        ..like.clone()
    });
    rows.retain(|row| {
        if row.duration_ns > least_ns {
            return true;
        }
        let rest = &mut rest[usize::from(!row.before_first_byte)];
        if rest.parts == 0 {
            rest.after_ns = row.after_ns;
        }
        (rest.duration_ns, rest.parts) = (rest.duration_ns + row.duration_ns, rest.parts + row.parts);
        false
    });
    rows.extend(rest.into_iter().filter(|rest| rest.parts > 0));
    rows.sort_by_key(|row| row.after_ns);
}

fn named(step: &Step, like: &RequestStretch, names: &mut Names) -> RequestStretch {
    let mut row = like.clone();
    (row.kind, row.reason, row.woken_by) = match step.what {
        What::Ran => ("ran", None, None),
        What::Ready { .. } => ("ready", None, None),
        What::Throttled => ("throttled", None, None),
        What::Asleep { reason, woken_by } => ("asleep", Some(reason), Some(woken_by)),
        What::Unknown(why) => ("unknown", Some(why), None),
    };
    if let What::Ready { taken_by: Some((pid, user, name)) } = &step.what {
        row.taken_by_pid = Some(*pid);
        row.taken_by = Some(names.of_taker(*user, name));
        row.taken_by_tenant = names.tenant_of_taker(*pid, *user);
    }
    if let Some(thread) = step.thread {
        let process = names.of_process(thread.pid, &thread.comm);
        row.thread = Some(if process == ANOTHER { process.clone() } else { comm(&thread.comm) });
        (row.of_pid, row.tid, row.process) = (Some(thread.pid), Some(thread.tid), Some(process));
        row.awaited_in = thread.awaited_in;
    }
    row
}

fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    record::printable(&record::text(&bytes[..end]))
}

/// Names of processes, asked for once in a while.
#[derive(Debug)]
pub(super) struct Names {
    /// Whose processes alone are recorded.
    only_user: Option<u32>,
    of: HashMap<u32, (Instant, Option<String>)>,
    /// Whose processes are that took a CPU; none of one that has ended.
    tenants: HashMap<u32, (Instant, Option<String>)>,
}

impl Names {
    pub(super) fn new(only_user: Option<u32>) -> Self {
        Self { only_user, of: HashMap::new(), tenants: HashMap::new() }
    }

    fn is_hidden(&self, user: u32) -> bool {
        self.only_user.is_some_and(|only| user != only && user != NOBODY)
    }

    fn of_taker(&self, user: u32, name: &[u8; 16]) -> String {
        if self.is_hidden(user) { ANOTHER.to_owned() } else { comm(name) }
    }

    /// Whose process it is; none where it has ended, or is shown to nobody.
    fn tenant_of_taker(&mut self, pid: u32, user: u32) -> Option<String> {
        if user == NOBODY {
            return Some(KERNEL.to_owned());
        }
        if self.is_hidden(user) {
            return None;
        }
        known(&mut self.tenants, pid, || process::tenant(pid))
    }

    /// A process's program; of one that has ended its thread's name.
    fn of_process(&mut self, pid: u32, thread: &[u8; 16]) -> String {
        let only_user = self.only_user;
        let name = known(&mut self.of, pid, || {
            let others = only_user.is_some_and(|user| !procfs::is_all_of_user(pid, user));
            if others { Some(ANOTHER.to_owned()) } else { program_of(pid) }
        });
        name.unwrap_or_else(|| comm(thread))
    }
}

/// What is known of a process, asked for anew where that was long ago.
fn known(
    of: &mut HashMap<u32, (Instant, Option<String>)>,
    pid: u32,
    ask: impl FnOnce() -> Option<String>,
) -> Option<String> {
    let now = Instant::now();
    if let Some((_, known)) = of.get(&pid).filter(|(at, _)| now.duration_since(*at) < NAMED_FOR) {
        return known.clone();
    }
    if of.len() >= MOST_NAMES {
        of.clear();
    }
    let told = ask();
    of.insert(pid, (now, told.clone()));
    told
}

fn program_of(pid: u32) -> Option<String> {
    let (comm, arguments) = (procfs::read(pid, "comm").ok()?, procfs::read(pid, "cmdline").unwrap_or_default());
    Some(program(&comm, &arguments))
}

/// A program's name, and of an interpreter the script's or module's; nothing else of its arguments.
fn program(comm: &[u8], arguments: &[u8]) -> String {
    let name = record::printable(record::text(comm).trim_end());
    let mut arguments = arguments.split(|byte| *byte == 0).map(record::text);
    let first = arguments.next().unwrap_or_default();
    let is_interpreter = INTERPRETERS.iter().any(|program| {
        let rest = name.strip_prefix(program);
        rest.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
    });
    if !is_interpreter || first.is_empty() {
        return name;
    }
    let script = loop {
        match arguments.next() {
            Some(module) if module == "-m" => break arguments.next(),
            Some(option) if option == "-c" || option == "-e" || option.is_empty() => break None,
            Some(option) if option.starts_with('-') => (),
            script => break script,
        }
    };
    let Some(script) = script else { return name };
    let script = script.rsplit('/').next().unwrap_or_default();
    format!("{name} {}", record::shortened(&record::printable(script), 40))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    fn step(from_ns: u64, until_ns: u64, tid: u32, what: What) -> Step {
        // A process number that there is not.
        let thread = Thread { pid: u32::MAX / 2, tid, comm: named("worker-2"), awaited_in: None };
        Step { from_ns, until_ns, thread: Some(thread), what }
    }

    #[test]
    fn steps_alike_are_one_row_and_rows_are_together_the_request() {
        let times = Times { came_ns: 60, read_ns: 100, first_ns: 300 };
        let taken = What::Ready { taken_by: Some((9, 0, named("hog"))) };
        let steps = [
            step(100, 150, 1, What::Ran),
            step(150, 200, 1, taken),
            step(200, 260, 1, What::Ran),
            step(260, 300, 2, What::Asleep { reason: "timer", woken_by: "interrupt" }),
            step(300, 400, 1, What::Ran),
        ];
        let rows = rows(times, &steps, &RequestStretch::default(), &mut Names::new(None));
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.kind, row.after_ns, row.duration_ns, row.parts, row.before_first_byte))
            .collect();
        assert_eq!(
            shown,
            [
                ("unread", 0, 40, 1, true),
                ("ran", 40, 110, 2, true),
                ("ready", 90, 50, 1, true),
                ("asleep", 200, 40, 1, true),
                ("ran", 240, 100, 1, false),
            ]
        );
        assert_eq!((rows[2].taken_by.as_deref(), rows[2].thread.as_deref()), (Some("hog"), Some("worker-2")));
        assert_eq!((rows[2].taken_by_pid, rows[3].tid, rows[3].place), (Some(9), Some(2), 3));
    }

    #[test]
    fn a_request_has_few_rows_and_they_miss_nothing() {
        let times = Times { came_ns: 0, read_ns: 0, first_ns: u64::MAX };
        let steps: Vec<Step> = (0..1_000).map(|n| step(n * 10, n * 10 + 10, n as u32 % 500, What::Ran)).collect();
        let rows = rows(times, &steps, &RequestStretch::default(), &mut Names::new(None));
        assert!(rows.len() <= MOST_ROWS + 1, "{}", rows.len());
        assert_eq!(rows.iter().map(|row| row.duration_ns).sum::<i64>(), 10_000);
        assert_eq!(rows.iter().map(|row| row.parts).sum::<u32>(), 1_000);
    }

    #[test]
    fn programs_are_named_without_their_arguments() {
        let program = |comm: &str, arguments: &[&str]| program(comm.as_bytes(), arguments.join("\0").as_bytes());
        assert_eq!(program("python3\n", &["python3", "-u", "/srv/engine.py", "--key=x"]), "python3 engine.py");
        assert_eq!(program("python3.11", &["python3.11", "-m", "vllm.server"]), "python3.11 vllm.server");
        assert_eq!(program("python3", &["python3", "-c", "secret()"]), "python3");
        assert_eq!(program("VLLM::EngineCor", &["VLLM::EngineCore"]), "VLLM::EngineCor");
        assert_eq!(program("shellcheck", &["shellcheck", "x"]), "shellcheck");
    }

    #[test]
    fn a_recorder_of_ones_own_names_nobody_elses() {
        let mut names = Names::new(Some(u32::MAX - 7));
        assert_eq!(names.of_process(std::process::id(), &named("x")), ANOTHER);
        assert_eq!(
            (names.of_taker(0, &named("hog")), names.of_taker(NOBODY, &named("kswapd0"))),
            (ANOTHER.into(), "kswapd0".into())
        );
    }
}
