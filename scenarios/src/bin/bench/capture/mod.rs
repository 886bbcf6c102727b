//! The cost of capture, as ratios in one run: a probed call compared with one whose probes do
//! nothing, an MPI job compared with the same without the agent, and a context switch of a task
//! that is not followed. Needs root; the MPI part needs Open MPI.
//!
//! `bench capture --record LIBRARY…` is the recorder of the first and the last part: in a process of
//! its own, so that the kernel's statistics of programs, which it switches on, are switched off
//! with it.

mod calls;
mod line_process;
mod mpi;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use node_bpf::{Capture, CaptureConfig, HostRecord, Record};
use scenarios::figures::figure;

use calls::{calls, switches};
use mpi::mpi;

/// What recording costs: calls beside empty probes, an MPI job beside itself, switches
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only these parts
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Only record calls of these libraries
    #[arg(long, hide = true, num_args = 0..)]
    record: Option<Vec<PathBuf>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Calls,
    Switches,
    Mpi,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(libraries) = &arguments.record {
        return record(libraries.clone());
    }
    if let Err(error) = node_bpf::supported() {
        bail!("nothing to measure: {error}");
    }
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let dir = tempfile::tempdir()?;
    compile(dir.path())?;
    let mut figures = vec![];
    if wanted(Part::Calls) {
        let of = calls(dir.path(), "nccl", "libnccl.so.2", "ncclAllReduce")?;
        figures.push(("collective_over_empty_probes", of.recorded, "ratio", 1.2));
        figures.push(("smallest_record_over_empty_probes", of.least, "ratio", 1.2));
        figures.push(("collective_over_smallest_record", of.recorded / of.least, "ratio", 1.2));
        let of = calls(dir.path(), "cuda", "libcudart.so.12", "cudaMemcpyAsync")?;
        figures.push(("cuda_call_over_empty_probes", of.recorded, "ratio", 1.2));
    }
    if wanted(Part::Switches) {
        figures.push(("switch_of_an_untracked_task", switches()?, "ns", 300.0));
    }
    if wanted(Part::Mpi) {
        match mpi(dir.path()) {
            Ok(slower) => {
                figures.push(("mpi_allreduce_loop_slower", slower.agent.0, "%", 0.5));
                figures.push(("mpi_allreduce_loop_interval", slower.agent.1, "%", 0.5));
                figures.push(("mpi_allreduce_loop_slower_by_empty_probes", slower.empty, "%", 0.5));
                figures.push(("mpi_allreduce_loop_slower_than_with_empty_probes", slower.over_empty, "%", 0.5));
                figures.push(("mpi_allreduce_loop_cpu_more", slower.cpu[0], "%", 0.5));
                figures.push(("mpi_allreduce_loop_cpu_more_by_empty_probes", slower.cpu[1], "%", 0.5));
            }
            Err(error) => eprintln!("no figure for MPI: {error:#}"),
        }
    }
    for (name, value, unit, aim) in figures {
        figure(name, value, unit, "<=", aim);
    }
    Ok(())
}

/// Records until its standard input ends, then prints runs and CPU time of every program.
fn record(libraries: Vec<PathBuf>) -> anyhow::Result<()> {
    let stats: Arc<Mutex<BTreeMap<String, f64>>> = Arc::default();
    let sink = Arc::clone(&stats);
    let config = CaptureConfig { libraries, system_libraries: false, ..CaptureConfig::default() };
    let capture = Capture::start(
        config,
        Box::new(move |record| {
            if let Record::Host(HostRecord::SelfStat(stat)) = record
                && let Ok(mut stats) = sink.lock()
            {
                stats.insert(stat.name, stat.value);
            }
        }),
    )?;
    println!("ready");
    std::io::stdin().read_to_string(&mut String::new())?;
    capture.stop();
    let stats = stats.lock().map_err(|_| anyhow::anyhow!("the sink panicked"))?;
    for (name, runs) in stats.iter().filter_map(|(name, n)| Some((name.strip_suffix(".runs")?, n))) {
        let cpu_ns = stats.get(&format!("{name}.cpu")).copied().unwrap_or(0.0);
        println!("{} {runs} {cpu_ns}", name.trim_start_matches("program."));
    }
    Ok(())
}

fn cc(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Compiles the libraries and the caller. The caller has them under names that no recorder knows,
/// so that other recorders on this machine leave them alone; ours gets the same files under the
/// known names.
fn compile(dir: &Path) -> anyhow::Result<()> {
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
    let called = ["called-1.so", "called-2.so"];
    for (name, (library, define)) in called.iter().zip([("libnccl.so.2", "-DNCCL"), ("libcudart.so.12", "-DCUDA")]) {
        let soname = format!("-Wl,-soname,{name}");
        cc(Command::new("cc")
            .args(["-O2", "-fPIC", "-shared", define, &soname, "-o"])
            .arg(dir.join(name))
            .arg(workloads.join("call-stubs.c")))?;
        std::fs::hard_link(dir.join(name), dir.join(library))?;
    }
    cc(Command::new("cc")
        .args(["-O2", "-Wl,-rpath,$ORIGIN", "-o"])
        .arg(dir.join("call-loop"))
        .arg(workloads.join("call-loop.c"))
        .args(called.map(|name| dir.join(name))))
}

fn spread(samples: &[f64]) -> String {
    let (low, high) = samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), s| (l.min(*s), h.max(*s)));
    format!("{low:.3} to {high:.3}")
}
