//! Questions to hosts that are killed, stopped, parted and restarted, every answer
//! judged.

use std::process::ExitCode;
use std::time::Duration;

use scenarios::figures::{figure, none_of};
use scenarios::lab::chaos::{self, Options};

/// Asks a mesh under faults and judges every answer.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Hosts.
    #[arg(long, default_value_t = 16)]
    hosts: usize,
    /// Questions.
    #[arg(long, default_value_t = 10_000)]
    questions: usize,
    /// Questions at a time.
    #[arg(long, default_value_t = 24)]
    at_once: usize,
    /// Of operations, questions and lost datagrams.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mean milliseconds between operations.
    #[arg(long, default_value_t = 600)]
    pace_ms: u64,
    /// Shortest deadline of a question, milliseconds; the longest is four times as long.
    #[arg(long, default_value_t = 800)]
    timeout_ms: u64,
    /// No question begins after so many seconds.
    #[arg(long, default_value_t = 3_600)]
    at_most_s: u64,
    /// More hosts than this are asked through intermediate aggregators [default: none are].
    #[arg(long)]
    tree_above: Option<usize>,
    /// The mesh lives in cells of at most so many hosts [default: it is one].
    #[arg(long)]
    most_in_cell: Option<usize>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let shortest = Duration::from_millis(arguments.timeout_ms);
    let report = chaos::run(&Options {
        hosts: arguments.hosts,
        questions: arguments.questions,
        at_once: arguments.at_once,
        seed: arguments.seed,
        pace: Duration::from_millis(arguments.pace_ms),
        new_rows: true,
        timeout: (shortest, 4 * shortest),
        at_most: Duration::from_secs(arguments.at_most_s),
        tree_above: arguments.tree_above.unwrap_or(usize::MAX),
        most_in_cell: arguments.most_in_cell,
        says: true,
    })?;
    print!("{report}");
    figure("chaos_questions", report.questions as f64, "questions", ">=", 10_000.0);
    none_of("chaos_wrong_answers", report.wrong_rows, "answers");
    none_of("chaos_wrong_coverage", report.wrong_coverage, "answers");
    none_of("chaos_failed_at_a_well_asker", report.failed, "questions");
    none_of("chaos_later_than_deadline_and_a_tenth", report.late_at_all, "answers");
    if let Some((before, after)) = report.resources {
        none_of("chaos_leaked_file_handles", after.files.saturating_sub(before.files), "handles");
        none_of("chaos_leaked_threads", after.threads.saturating_sub(before.threads), "threads");
    }
    // See the test of the short form.
    let most = (40 + 8 * arguments.hosts) as f64;
    figure("chaos_tasks_of_an_agent_at_the_end", report.tasks.1 as f64, "tasks", "<=", most);
    let [_, second, _, last] = report.memory_bytes;
    figure("chaos_memory_last_quarter_over_second", last as f64 / second.max(1) as f64, "ratio", "<=", 1.1);
    let [_, second, _, last] = report.live_bytes;
    figure("chaos_live_memory_last_quarter_over_second", last as f64 / second.max(1) as f64, "ratio", "<=", 1.1);
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
