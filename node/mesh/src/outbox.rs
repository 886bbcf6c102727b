//! Outgoing gossip: a short queue and a worker for each address, so that sending never waits.
//!
//! A message that cannot be sent soon is worthless (the next round carries the same, newer), so a
//! full queue drops the message at hand, and when an address cannot be reached all that waits for
//! it is dropped.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::endpoint::canonical;
use super::pool::Purpose;
use super::{Mesh, count, count_message};

/// Messages that may wait for one address.
const QUEUE: usize = 8;

/// A worker without work for this long ends.
const IDLE: Duration = Duration::from_secs(30);

/// How long sending a message may take, dialling included.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Outboxes(Mutex<HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>>);

/// Queues `payload` for `to`, or drops it.
pub(super) fn send(mesh: &Mesh, to: SocketAddr, payload: Vec<u8>) {
    let to = canonical(to);
    if payload.len() > gossip::MAX_PAYLOAD_BYTES || mesh.0.closing.is_cancelled() {
        count(&mesh.0.counters.gossip_dropped);
        return;
    }
    let mut outboxes = mesh.0.outboxes.0.lock();
    let outbox = outboxes.entry(to).or_insert_with(|| start(mesh, to));
    if outbox.try_send(payload).is_err() {
        count(&mesh.0.counters.gossip_dropped);
    }
}

fn start(mesh: &Mesh, to: SocketAddr) -> mpsc::Sender<Vec<u8>> {
    let (outbox, queue) = mpsc::channel(QUEUE);
    tokio::spawn(work(mesh.clone(), to, queue));
    outbox
}

async fn work(mesh: Mesh, to: SocketAddr, mut queue: mpsc::Receiver<Vec<u8>>) {
    loop {
        let payload = tokio::select! {
            payload = tokio::time::timeout(IDLE, queue.recv()) => payload,
            () = mesh.0.closing.cancelled() => return,
        };
        let Ok(Some(payload)) = payload else {
            // Under the lock, so that no message can be queued between the last look and the
            // removal.
            let mut outboxes = mesh.0.outboxes.0.lock();
            if queue.is_empty() {
                outboxes.remove(&to);
                return;
            }
            continue;
        };
        let sent = tokio::time::timeout(SEND_TIMEOUT, deliver(&mesh, to, &payload)).await;
        if matches!(sent, Ok(Some(()))) {
            count_message(&mesh.0.counters.gossip_sent, &mesh.0.counters.gossip_sent_bytes, &payload);
        } else {
            count(&mesh.0.counters.gossip_dropped);
            while queue.try_recv().is_ok() {
                count(&mesh.0.counters.gossip_dropped);
            }
        }
    }
}

async fn deliver(mesh: &Mesh, to: SocketAddr, payload: &[u8]) -> Option<()> {
    // A second connection when the first turns out to be closed.
    for _ in 0..2 {
        let lease = mesh.connect(to, Purpose::Gossip, Instant::now() + SEND_TIMEOUT).await.ok()?;
        lease.peer.usage.touch();
        let sent = async {
            let mut stream = lease.peer.connection.open_uni().await.ok()?;
            stream.write_all(payload).await.ok()?;
            stream.finish().ok()
        };
        if sent.await.is_some() {
            return Some(());
        }
        if !lease.reused {
            return None;
        }
        mesh.0.pool.evict(&lease.peer);
    }
    None
}
