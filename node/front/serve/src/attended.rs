//! Ends a front end that nobody can use: its agent is gone for long, and no client can connect.
//!
//! While clients can connect it stays, because the agent may come back, and says so once.

use std::time::Duration;

use ask::Target;

/// How often the agent is looked for.
const EVERY: Duration = Duration::from_secs(5);

/// Error: the agent has not answered for long, and nobody can connect to this process.
#[derive(Debug, thiserror::Error)]
#[error("{agent} has not answered for {} s and no client can connect: ended (start it again with the agent)", .after.as_secs())]
pub(super) struct Left {
    agent: String,
    after: Duration,
}

/// Waits until the agent has been gone for as long as `after`. Where clients can connect
/// (`listens`) it says so once on standard error and never returns.
pub(super) async fn until_left(target: Target, after: Duration, listens: bool) -> Left {
    let mut gone_since = None;
    let mut is_said = false;
    let mut ticks = tokio::time::interval(EVERY.min(after));
    loop {
        ticks.tick().await;
        let asked = target.clone();
        // (A thread that cannot be had says nothing of the agent.)
        if !tokio::task::spawn_blocking(move || asked.is_gone()).await.unwrap_or(false) {
            (gone_since, is_said) = (None, false);
            continue;
        }
        let since = *gone_since.get_or_insert_with(tokio::time::Instant::now);
        if since.elapsed() < after {
            continue;
        }
        let agent = ask::output::printable(&target.description());
        if !listens {
            return Left { agent, after };
        }
        if !is_said {
            is_said = true;
            eprintln!(
                "{agent} has not answered for {} s; serving goes on, because clients can connect and the agent may come back",
                after.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ask::SocketBackend;

    use super::*;

    #[tokio::test]
    async fn who_only_sends_ends_when_its_agent_has_been_gone_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let agent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let target = Target::of(Arc::new(SocketBackend::at(Some(socket))));
        let after = Duration::from_millis(20);
        let left = tokio::spawn(until_left(target.clone(), after, false));
        // As long as the agent can be reached it stays: the agent has been asked again and again by now.
        for _ in 0..5 {
            let _asked = tokio::task::spawn_blocking({
                let agent = agent.try_clone().unwrap();
                move || agent.accept().unwrap()
            })
            .await
            .unwrap();
            assert!(!left.is_finished());
        }
        drop(agent);
        let left = left.await.unwrap();
        assert!(left.to_string().contains("has not answered for") && left.to_string().contains("ended"), "{left}");
    }
}
