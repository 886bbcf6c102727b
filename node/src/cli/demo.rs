//! `rankmesh demo`: the main job on one machine. The work is in `crate::demo`.

use ask::Exit;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{DemoArgs, DemoServer};
use crate::demo;

pub(super) fn run(args: DemoArgs) -> anyhow::Result<Exit> {
    if let Some(server) = args.server {
        demo::server::serve(server == DemoServer::Faulty)?;
        return Ok(Exit::Complete);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        tokio::select! {
            shown = show(&args) => return shown.map(|()| Exit::Complete),
            // Dropping the demo removes what it made.
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
        anyhow::bail!("interrupted; everything the demo made is removed")
    })
}

async fn show(args: &DemoArgs) -> anyhow::Result<()> {
    match args.serving {
        true => demo::serving::show().await,
        false => demo::show(args.replay, args.record.as_deref()).await,
    }
}
