//! `rankmesh query`: a SQL question to the mesh, or to one file.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use query_planner::LocalError;

use super::local::{self, NoAnswer, Reply};
use super::{Exit, Explain, QueryArgs, UsageError};
use crate::agent::local::LocalRequest;
use crate::output::{Printed, print, printable};
use crate::query::ask::Question;
use crate::query::file::FileError;
use crate::query::{self};

pub(super) fn run(args: QueryArgs) -> anyhow::Result<Exit> {
    let sql = if args.sql == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading the question from standard input")?;
        text
    } else {
        args.sql.clone()
    };
    match &args.db {
        Some(file) => one_file(file, &sql, &args),
        None => mesh(sql, &args),
    }
}

fn mesh(sql: String, args: &QueryArgs) -> anyhow::Result<Exit> {
    let socket = match super::slurm::reach(&args.socket, args.job.as_deref())? {
        Ok(socket) => socket,
        Err(exit) => return Ok(exit),
    };
    let question = Question {
        sql,
        timeout_ms: u64::try_from(args.ask.timeout.as_millis()).unwrap_or(u64::MAX),
        nodes: args.ask.nodes.clone(),
        labels: args.ask.label.clone(),
        per_node: args.per_node,
        plan_only: args.explain == Some(Explain::Plan),
        analyze: args.explain == Some(Explain::Analyze),
    };
    let reply = match local::ask(&socket, &LocalRequest::Query(question)) {
        Ok(reply) => reply,
        Err(error) => {
            say_coverage(&error);
            return Err(error);
        }
    };
    let mut out = std::io::stdout().lock();
    match reply {
        Reply::Text(plan) => {
            writeln!(out, "{}", plan.trim_end())?;
            Ok(Exit::Complete)
        }
        Reply::Result { columns, rows, coverage, elapsed_ms, explained } => {
            let complete = coverage.is_complete();
            let mut err = std::io::stderr().lock();
            if !complete && args.ask.require_all {
                for line in coverage.lines() {
                    writeln!(err, "{}", printable(&line))?;
                }
                anyhow::bail!("the answer is partial and --require-all was given: nothing is printed");
            }
            if args.explain == Some(Explain::Analyze) {
                writeln!(out, "{}", explained.trim_end())?;
                for line in coverage.lines() {
                    writeln!(err, "{}", printable(&line))?;
                }
            } else {
                let result = Printed { columns: &columns, rows: &rows, coverage: Some(&coverage), elapsed_ms };
                print(&result, args.format, &mut out, &mut err)?;
            }
            Ok(if complete { Exit::Complete } else { Exit::Partial })
        }
    }
}

/// A failed question still says who had answered.
pub(super) fn say_coverage(error: &anyhow::Error) {
    if let Some(NoAnswer { coverage: Some(coverage), .. }) = error.downcast_ref() {
        for line in coverage.lines() {
            eprintln!("{}", printable(&line));
        }
    }
}

fn one_file(file: &Path, sql: &str, args: &QueryArgs) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let deadline = started + args.ask.timeout;
    let answer = query::file::ask(file, sql, deadline).map_err(|error| match error {
        FileError::Question(_) if Instant::now() >= deadline => {
            anyhow::anyhow!(
                "timeout: the question took longer than {:?}; give --timeout or narrow it",
                args.ask.timeout
            )
        }
        FileError::Question(LocalError::Query(error)) => UsageError(error.render(sql)).into(),
        FileError::Question(other) => other.into(),
        FileError::Store(other) => other.into(),
    })?;
    let result = Printed {
        columns: &answer.columns,
        rows: &answer.rows,
        coverage: None,
        elapsed_ms: started.elapsed().as_secs_f64() * 1e3,
    };
    print(&result, args.format, &mut std::io::stdout().lock(), &mut std::io::stderr().lock())?;
    Ok(Exit::Complete)
}
