//! `rankmesh trace`: record this host into a file, without a mesh.

use std::time::Duration;

use anyhow::Context;
use ask::{Exit, UsageError};
use node_bpf::{Capture, CaptureConfig};
use store::{Store, StoreConfig};

use super::args::TraceArgs;
use crate::privileges::{self, Plan};

pub(super) fn run(args: TraceArgs) -> anyhow::Result<Exit> {
    if args.out.exists() {
        return Err(UsageError(format!("{} exists; give --out a new file", args.out.display())).into());
    }
    node_bpf::supported().context("this host cannot record")?;
    // Before the store's thread: capabilities are each thread's own.
    privileges::give_up_all_but(&Plan { capture: true, files: vec![args.out.clone()], port: 0 })
        .context("giving up privileges")?;
    let store = Store::open(&args.out, StoreConfig::default())?;
    let ingest = store.ingest();
    let capture = Capture::start(
        CaptureConfig { cgroup: args.cgroup, ..CaptureConfig::default() },
        Box::new(move |record| ingest.record(record)),
    )
    .context("starting capture")?;
    let whose = capture.status().only_user.map(|user| format!(", only processes of user {user}"));
    eprintln!("recording into {}{}; Ctrl-C ends it", args.out.display(), whose.unwrap_or_default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            () = tokio::time::sleep(args.duration.unwrap_or(Duration::MAX)) => {}
        }
        anyhow::Ok(())
    })?;
    capture.stop();
    store
        .flush(Duration::from_secs(30))
        .with_context(|| format!("writing the last records to {}", args.out.display()))?;
    store.close();
    Ok(Exit::Complete)
}
