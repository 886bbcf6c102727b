//! `rankmesh top --once`: the current state, printed once.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ask::output::terminal_columns;
use ask::{Exit, Piece, Target};
use model::board::BoardQuestion;
use model::watch::Watched;
use model::{LocalRequest, WatchQuestion};
use top::{App, Data, Look, View, plain};

use super::source::{self, Fetcher};
use super::{OnceFormat, TopArgs, past};

/// Longest wait for a verdict's cause, which an agent looks for only while a client watches.
const CAUSE: Duration = Duration::from_secs(3);
/// Longest wait for any message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Columns where the environment does not give them.
const WIDTH: u16 = 120;

pub(super) fn run(target: Target, args: &TopArgs, look: Look) -> anyhow::Result<Exit> {
    let span_ns = args.span.resolved_ns(&target)?;
    let is_past = target.is_stores() || span_ns.is_some();
    let watched = if is_past {
        past::watched(&target, args.job.as_deref().map(past::job_id), span_ns)?
    } else {
        first(&target, args)?
    };
    let exit = if watched.coverage.is_complete() { Exit::Complete } else { Exit::Partial };
    if let (Some(wanted), None) = (&args.job, &watched.job) {
        bail!("no verdict stands on job {wanted}; rankmesh top --view jobs lists those on which one does");
    }
    let mut out = std::io::stdout().lock();
    if args.format == OnceFormat::Json {
        serde_json::to_writer(&mut out, &watched).map_err(std::io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
        return Ok(exit);
    }
    let mut data = Data::of(target.description(), target.is_stores());
    data.show_at = is_past.then_some(watched.at_ns);
    let at_ns = watched.at_ns;
    // Of the past the job that was chosen there, else as it was asked.
    let job = if is_past { watched.job.as_ref().and_then(|job| job.id.clone()) } else { args.job.clone() };
    if let Some(job) = watched.job.as_ref().filter(|_| is_past) {
        for note in job.notes.iter().filter(|note| note.starts_with(past::ALSO)) {
            eprintln!("{}", ask::output::printable(note));
        }
    }
    data.watch(watched, 0);
    let mut app = App::at(args.view);
    let fetcher = Fetcher::new(&target, job.as_deref().map(past::job_id).map(str::to_owned));
    let needs_board = matches!(app.view(), View::Ranks | View::Heat | View::Rank);
    if needs_board {
        let board = if is_past {
            past::board(&target, job.as_deref(), at_ns)
        } else {
            let since_ns = Some(at_ns.saturating_sub(source::LAST_MINUTE_NS));
            target.board(BoardQuestion {
                job: job.clone(),
                since_ns,
                timeout_ms: source::millis(PATIENCE),
                ..BoardQuestion::default()
            })
        };
        match board {
            Ok(board) => data.board(board),
            Err(error) => data.error = Some(format!("{error:#}")),
        }
    }
    if matches!(app.view(), View::Nodes | View::Rank) {
        data.samples = fetcher.samples(data.show_at);
    }
    if app.view() == View::Findings {
        data.findings = fetcher.findings();
    }
    if app.view() == View::Services {
        data.services = fetcher.services(data.show_at);
    }
    if app.view() == View::Rank
        && let Some(worst) = data.watched.as_ref().and_then(|watched| watched.ranks.first())
    {
        let (node, pid, rank) = (worst.node.clone(), worst.pid, worst.rank);
        data.detail = Some(fetcher.detail(&node, pid, rank, data.show_at));
        app.key(top::Key::Char('6'), &data);
    }
    let width = terminal_columns().unwrap_or(WIDTH);
    write!(out, "{}", plain(&mut app, &data, &look, width.clamp(60, 400), 0))?;
    out.flush()?;
    Ok(exit)
}

/// The first state that is sent; of a job that has a culprit, the first with its cause, if one is
/// found soon.
fn first(target: &Target, args: &TopArgs) -> anyhow::Result<Watched> {
    let (started, mut found) = (Instant::now(), None::<Watched>);
    let request = LocalRequest::Watch(WatchQuestion { job: args.job.clone() });
    // When enough has come, an error of its own ends the reception.
    let asked = target.ask_into(request, &mut |piece| {
        if let Piece::Watched(json) = piece {
            let watched: Watched = serde_json::from_str(&json).context("reading what the agent pushes")?;
            let lacks_cause = watched.job.as_ref().is_some_and(|job| {
                job.cause.is_none() && job.culprits.first().is_some_and(|culprit| culprit.late_by_ns.is_some())
            });
            found = Some(watched);
            if !lacks_cause {
                bail!(source::ENOUGH);
            }
        }
        let patience = if found.is_some() { CAUSE } else { PATIENCE };
        if started.elapsed() >= patience {
            bail!(source::ENOUGH);
        }
        Ok(())
    });
    match (found, asked) {
        (Some(watched), _) => Ok(watched),
        (None, Err(error)) => Err(source::explained(error)),
        (None, Ok(_)) => bail!("the agent ended the push before it said anything"),
    }
}
