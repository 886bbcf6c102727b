//! What `rankmesh tail` prints for people: in 80 columns, the most important first.

use ask::output::{printable, render};
use record::units::{duration, short_duration};

use super::figures::{Figures, Service};
use super::{By, CauseGroup, Example, Excess, More, Slowest, Tail};

/// Groups listed of a service.
const ROWS: usize = 20;
/// Parts with less of what slow requests take longer are left out.
const LEAST_SHARE: f64 = 0.03;
/// As many causes are listed however little they have.
const LEAST_CAUSES: usize = 3;
/// Widest name in a table.
const WIDEST: usize = 28;

pub(super) fn printed(tail: &Tail) -> String {
    let mut out = String::new();
    if tail.services.is_empty() {
        out.push_str(&record::wrapped(&nothing(None)));
    }
    for service in &tail.services {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&of_service(service, tail.by));
    }
    if tail.left_out > 0 {
        out.push_str(&format!("\n… and {} more services (--service NAME asks for one)\n", tail.left_out));
    }
    out
}

/// That there is nothing, of this service or of any, and what to do.
pub(super) fn nothing(service: Option<&str>) -> String {
    let what = service.map_or_else(|| " that were asked for".to_owned(), |name| format!(" of {}", printable(name)));
    format!(
        "No requests{what} are stored of this time. (rankmesh up --serve NAME=port:N names a server; docs/serving.md says \
         which are found without it.)"
    )
}

fn time(ns: Option<i64>) -> String {
    ns.map_or_else(|| "-".to_owned(), short_duration)
}

fn of_service(service: &Service, by: By) -> String {
    let mut out: String = lead(service).iter().map(|sentence| record::wrapped(sentence)).collect();
    out.push('\n');
    if by != By::Cause {
        out.push_str(&table(service, by));
        out.push('\n');
    }
    out.push_str(&of_slowest(&service.slowest, by));
    if by == By::Cause {
        out.extend(not_all(service).map(|sentence| record::wrapped(&sentence)));
    }
    out
}

/// Its figures, and which groups are slower than their peers.
pub(super) fn lead(service: &Service) -> Vec<String> {
    let figures = &service.figures;
    let first = format!(
        "{}: {} requests, p50 {}, p90 {}, p99 {}, p99.9 {}, longest {}",
        printable(&service.service),
        figures.count,
        time(figures.p50_ns),
        time(figures.p90_ns),
        time(figures.p99_ns),
        time(figures.p999_ns),
        time(figures.max_ns)
    );
    let slower = service.groups.iter().filter_map(|group| {
        let slower = group.compared.as_ref()?;
        let z = slower.z.map_or_else(String::new, |z| format!(" (robust z {z:.1})"));
        Some(format!(
            "{} serves {} {:.1} times slower than its peers{z}.",
            printable(&group.of),
            slower.quantile,
            slower.times
        ))
    });
    [first, beside(figures)].into_iter().chain(slower).collect()
}

/// What is said of a service in a second line.
fn beside(figures: &Figures) -> String {
    let share = |part: i64| part as f64 / figures.count.max(1) as f64 * 100.0;
    let mut words =
        vec![format!("first byte p50 {}, p99 {}", time(figures.first_byte_p50_ns), time(figures.first_byte_p99_ns))];
    if figures.errors > 0 {
        words.push(format!(
            "{} failed ({:.2} %), of these {} not answered",
            figures.errors,
            share(figures.errors),
            figures.unanswered
        ));
    }
    if figures.unread_share >= 0.01 {
        words.push(format!("{:.0} % of their time they lay unread", figures.unread_share * 100.0));
    }
    words.join("; ")
}

/// Columns of a group's figures.
pub(super) const FIGURES: [&str; 7] = ["requests", "failed", "p50", "p90", "p99", "p99.9", "max"];

/// The figures in these columns.
pub(super) fn figures(figures: &Figures) -> [String; 7] {
    [
        figures.count.to_string(),
        figures.errors.to_string(),
        time(figures.p50_ns),
        time(figures.p90_ns),
        time(figures.p99_ns),
        time(figures.p999_ns),
        time(figures.max_ns),
    ]
}

fn table(service: &Service, by: By) -> String {
    let rows = service.groups.iter().take(ROWS).map(|group| {
        [record::short_name(&group.of, WIDEST)].into_iter().chain(figures(&group.figures)).collect::<Vec<_>>()
    });
    let columns: Vec<&str> = [by.title()].into_iter().chain(FIGURES).collect();
    let mut out = render(&columns, rows, &[false, true, true, true, true, true, true, true]);
    out.push('\n');
    if service.groups.len() > ROWS {
        out.push_str(&format!("… and {} more (--format json has all)\n", service.groups.len() - ROWS));
    }
    out
}

/// How much longer the slowest take, and whether that is anything.
pub(super) fn excess(slowest: &Slowest, by: By) -> Option<String> {
    let excess = slowest.excess.as_ref()?;
    let take = format!(
        "slowest 1 % (from {} on; {} looked into) take {} on average, ordinary ones {}.",
        duration(slowest.from_ns),
        slowest.rows,
        duration(excess.slow_ns),
        duration(excess.ordinary_ns)
    );
    Some(match (excess.grown, by) {
        (false, _) => format!("Nothing has grown: the {take} That is less than twice as long, or less than 1 ms more."),
        (true, By::Cause) => format!("The {take} By what most delays each:"),
        (true, _) => format!("The {take} What they have more of:"),
    })
}

/// What the slowest share, and what of them is not known.
pub(super) fn beyond(slowest: &Slowest) -> Vec<String> {
    let shared = slowest.shared.iter().map(|shared| {
        format!(
            "{:.0} % of them are of {} {} ({:.0} % of the ordinary ones).",
            shared.share * 100.0,
            shared.what,
            printable(&shared.of),
            shared.ordinary_share * 100.0
        )
    });
    let what = if slowest.excess.is_some() { "Cannot be told" } else { "What makes the slowest slow cannot be told" };
    shared.chain(slowest.cannot_be_told.iter().map(|why| format!("{what}: {why}."))).collect()
}

fn of_slowest(slowest: &Slowest, by: By) -> String {
    let mut out = String::new();
    let grown = slowest.excess.as_ref().filter(|excess| excess.grown);
    out.extend(excess(slowest, by).map(|sentence| record::wrapped(&sentence)));
    match grown {
        Some(_) if by == By::Cause => out.push_str(&causes(slowest)),
        Some(excess) => out.push_str(&parts(excess)),
        None => {}
    }
    beyond(slowest).iter().for_each(|sentence| out.push_str(&record::wrapped(sentence)));
    // By cause each has its own.
    if !slowest.examples.is_empty() && slowest.excess.as_ref().is_none_or(|excess| excess.grown) && by != By::Cause {
        out.push_str("Examples:\n");
        slowest.examples.iter().for_each(|example| out.push_str(&record::wrapped(&of_example(example))));
    }
    out
}

/// The parts of it that are worth a line.
pub(super) fn worth_telling(excess: &Excess) -> impl Iterator<Item = &More> {
    excess.parts.iter().filter(|more| more.share >= LEAST_SHARE)
}

/// What slow requests have more of, a line each.
fn parts(excess: &Excess) -> String {
    let lines = worth_telling(excess).map(|more| {
        let figures = format!("  {:>4.0} %  {:>7}  ", more.share * 100.0, short_duration(more.more_ns));
        beside_figures(&figures, &printable(&more.text))
    });
    lines.collect()
}

/// What most delays them, each with its requests and one of these.
fn causes(slowest: &Slowest) -> String {
    let mut out = String::from("  excess  requests      p50      p99  cause, and one of them\n");
    let (told, others) = causes_worth_telling(slowest);
    for CauseGroup { text, count, p50_ns, p99_ns, share, example, .. } in told {
        let figures = format!(
            "  {:>4.0} %  {count:>8}  {:>7}  {:>7}  ",
            share * 100.0,
            short_duration(*p50_ns),
            short_duration(*p99_ns)
        );
        out.push_str(&beside_figures(&figures, &printable(text)));
        out.push_str(&beside_figures("          ", of_example(example).trim_end()));
    }
    out.extend(others.map(|others| record::wrapped(&others)));
    out
}

/// That causes count a part of the slowest, where not all have rows that were looked into.
pub(super) fn not_all(service: &Service) -> Option<String> {
    let slow = service.figures.count / 100;
    let counted: i64 = service.slowest.causes.iter().map(|of| of.count).sum();
    let is_part = counted > 0 && service.slowest.causes_left_out == 0 && counted < slow - slow / 10;
    is_part.then(|| format!("Causes count the {counted} that were looked into, of about {slow} so slow."))
}

/// The causes that are worth lines, and the others in a sentence.
pub(super) fn causes_worth_telling(slowest: &Slowest) -> (&[CauseGroup], Option<String>) {
    let many = slowest.causes.iter().take_while(|of| of.share >= LEAST_SHARE).count();
    let (told, others) = slowest.causes.split_at(many.max(LEAST_CAUSES).min(slowest.causes.len()));
    let (count, left_out) = (others.len() + slowest.causes_left_out, slowest.causes_left_out);
    let share: f64 = others.iter().map(|of| of.share).sum();
    let of = if left_out > 0 { "more than " } else { "" };
    let sentence =
        || format!("{count} other causes have {of}{:.0} % of the excess together (--format json).", share * 100.0);
    (told, (count > 0).then(sentence))
}

/// Words in the columns that figures leave of 80.
fn beside_figures(figures: &str, words: &str) -> String {
    let (mut out, mut column) = (figures.to_owned(), figures.chars().count());
    let indent = column;
    for word in words.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > 80 {
            out.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out + "\n"
}

/// Links of a chain that take less of the request are left out.
const LEAST_OF_REQUEST: f64 = 0.02;

fn of_example(example: &Example) -> String {
    format!("- {}: {}", head(example), links(example).join("; then "))
}

/// Which request it is.
pub(super) fn head(example: &Example) -> String {
    let status = example.status.map_or_else(String::new, |status| format!(" {status}"));
    format!(
        "{} {}{status} on {} (pid {}, thread {}, ts_ns {})",
        short_duration(example.duration_ns),
        printable(&example.route),
        printable(&example.node),
        example.pid,
        example.tid,
        example.ts_ns
    )
}

/// Who did what for it, then who.
pub(super) fn links(example: &Example) -> Vec<String> {
    let least_ns = (example.duration_ns as f64 * LEAST_OF_REQUEST) as i64;
    let links = example.path.iter().filter(|link| link.ns >= least_ns);
    links.map(|link| format!("{} {}", short_duration(link.ns), printable(&link.text))).collect()
}

#[cfg(test)]
mod tests {
    use explain::tail::{Kind, Part, Request, slowest};
    use model::Coverage;

    use super::super::figures::{Group, Slower};
    use super::*;

    #[test]
    fn what_is_printed_fits_80_columns_and_begins_with_the_figures() {
        const MS: i64 = 1_000_000;
        let part = |kind, of: &str, thread: &str| Part {
            kind,
            of: of.into(),
            process: "python3 a_server_with_a_long_name.py".into(),
            thread: thread.into(),
            ..Part::default()
        };
        let request = |n: i64, path: Vec<(Part, i64)>| Request {
            node: "gpu-node-with-a-long-name-7.cluster.example.org".into(),
            pid: 4_711,
            tid: 4_712,
            ts_ns: 1_796_000_000_000_000_000 + n * 100 * MS,
            duration_ns: path.iter().map(|(_, ns)| ns).sum(),
            route: "POST /v1/chat/completions/{number}/with/a/long/path/{uuid}".into(),
            status: Some(200),
            weight: 1.0,
            path,
            ..Request::default()
        };
        let ran = || (part(Kind::OnCpu, "", "main"), 2 * MS);
        let slow = (0..9).map(|n| {
            let taken = (part(Kind::CpuTaken, "stress-ng-cpu", "ThreadPoolExecu"), 50 * MS);
            request(n, vec![ran(), taken, (part(Kind::Unknown, "overwritten", ""), 10 * MS)])
        });
        let slow: Vec<Request> = slow.collect();
        let ordinary: Vec<Request> = (20..60).map(|n| request(n, vec![ran()])).collect();
        let found = slowest(50 * MS, &slow, &ordinary, 2);
        let figures = Figures {
            count: 123_456,
            errors: 12,
            unanswered: 2,
            p50_ns: Some(2 * MS),
            p99_ns: Some(60 * MS),
            unread_share: 0.02,
            ..Figures::default()
        };
        let compared = Some(Slower { quantile: "p99", times: 2.3, z: Some(7.1) });
        let group =
            Group { of: "gpu-node-with-a-long-name-7.cluster.example.org".into(), figures: figures.clone(), compared };
        let service = Service { service: "chat".into(), figures, groups: vec![group], slowest: found };
        let services = vec![service];
        let mut tail = Tail {
            version: 1,
            since_ns: 0,
            until_ns: 1,
            by: By::Host,
            services,
            left_out: 0,
            coverage: Coverage::default(),
        };
        let text = printed(&tail);
        assert!(text.starts_with("chat: 123456 requests, p50 2.00ms"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "2.3 times slower than its peers",
            "taken by stress-ng-cpu, thread ThreadPoolExecu of python3",
            "Cannot be told: 17 % of it: too much happened meanwhile",
            "Examples:",
            "2.00ms ran, main thread of python3 a_server_with_a_long_name.py; then 50.0ms ready",
        ] {
            assert!(words.contains(part), "no {part:?} in {text}");
        }
        tail.by = By::Cause;
        tail.services[0].groups.clear();
        insta::assert_snapshot!(printed(&tail), @r"
        chat: 123456 requests, p50 2.00ms, p90 -, p99 60.0ms, p99.9 -, longest -
        first byte p50 -, p99 -; 12 failed (0.01 %), of these 2 not answered; 2 % of
          their time they lay unread

        The slowest 1 % (from 50.0 ms on; 9 looked into) take 62.0 ms on average,
          ordinary ones 2.00 ms. By what most delays each:
          excess  requests      p50      p99  cause, and one of them
           100 %         9   62.0ms   62.0ms  ready to run, the CPU taken by
                                              stress-ng-cpu, thread ThreadPoolExecu of
                                              python3 a_server_with_a_long_name.py
                  - 62.0ms POST /v1/chat/completions/{number}/with/a/long/path/{uuid}
                  200 on gpu-node-with-a-long-name-7.cluster.example.org (pid 4711,
                  thread 4712, ts_ns 1796000000000000000): 2.00ms ran, main thread of
                  python3 a_server_with_a_long_name.py; then 50.0ms ready to run, the
                  CPU taken by stress-ng-cpu, thread ThreadPoolExecu of python3
                  a_server_with_a_long_name.py; then 10.0ms not known: too much happened
                  meanwhile, and the kernel's record of threads was written over
        Cannot be told: 17 % of it: too much happened meanwhile, and the kernel's record
          of threads was written over.
        Causes count the 9 that were looked into, of about 1234 so slow.
        ");
    }
}
