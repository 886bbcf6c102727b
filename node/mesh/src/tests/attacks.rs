//! What a hostile machine on the network, or a member that turned hostile, may try against an
//! endpoint: it is refused or bounded, and the others are served meanwhile. (A peer without a
//! certificate, one of another CA, and meaningless frames are in the parent module.)

use std::collections::HashSet;
use std::net::UdpSocket;

use certs::Role;
use model::FailureKind;

use super::*;

/// Dials `to` as `identity` without our client: an attacker with a key need not keep to it.
async fn dial(identity: &Identity, to: SocketAddr) -> quinn::Connection {
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
    let config = super::super::endpoint::client_config(identity).unwrap();
    let connection = endpoint.connect_with(config, to, certs::tls::SERVER_NAME).unwrap().await.unwrap();
    super::super::endpoint::Window::Asked(1).open(&connection);
    connection
}

/// Sends bytes on a stream of their own and reads the answer.
async fn exchange(connection: &quinn::Connection, bytes: &[u8]) -> Result<Option<Response>, frame::FrameError> {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    send.finish().unwrap();
    FrameReader::new(receive).read::<Response>().await
}

/// The first packets of many handshakes, as an endpoint sends them to an address where nobody
/// answers.
async fn first_packets(ca: &Authority, handshakes: usize) -> Vec<Vec<u8>> {
    let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    nowhere.set_nonblocking(true).unwrap();
    let client = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
    let config = super::super::endpoint::client_config(&ca.issue(&name("x"), NODE_VALIDITY).unwrap()).unwrap();
    let address = nowhere.local_addr().unwrap();
    let (mut connecting, mut packets, mut ids) = (Vec::new(), Vec::new(), HashSet::new());
    let until = soon();
    while ids.len() < handshakes {
        assert!(Instant::now() < until, "{} handshakes were started", ids.len());
        if connecting.len() < handshakes {
            connecting.push(client.connect_with(config.clone(), address, certs::tls::SERVER_NAME).unwrap());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut packet = [0; 2_000];
        while let Ok(length) = nowhere.recv(&mut packet) {
            // RFC 9000, 17.2: flags, version, length of the destination's id, that id.
            let id = packet[6..6 + usize::from(packet[5])].to_vec();
            if ids.insert(id) {
                packets.push(packet[..length].to_vec());
            }
        }
    }
    packets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_is_not_amplified_and_members_get_through() {
    const FLOOD: usize = 700;
    let ca = authority();
    let (a, b) = (start(&ca, "a"), start(&ca, "b"));
    let packets = first_packets(&ca, FLOOD).await;
    let flooder = UdpSocket::bind("127.0.0.1:0").unwrap();
    flooder.set_nonblocking(true).unwrap();
    let (mut sent, mut answered, mut retries) = (0, 0, 0);
    let receive = |answered: &mut usize, retries: &mut usize| {
        let mut packet = [0; 2_000];
        while let Ok(length) = flooder.recv(&mut packet) {
            *answered += length;
            // A long header of type 3 is a retry (RFC 9000, 17.2.5).
            *retries += usize::from(packet[0] & 0xf0 == 0xf0);
        }
    };
    let until = soon();
    // (Again where a socket's buffer was full: what was lost is then another handshake.)
    while retries == 0 {
        assert!(Instant::now() < until, "nobody was asked to prove its address");
        for packet in &packets {
            assert!(packet.len() >= 1_200, "a client pads its first packet");
            flooder.send_to(packet, b.address).unwrap();
            sent += packet.len();
            receive(&mut answered, &mut retries);
            tokio::task::yield_now().await;
        }
    }
    // In the middle of it a member proves its address and is served.
    a.assert_answers(&b).await;
    receive(&mut answered, &mut retries);
    assert!(answered <= 3 * sent, "{answered} bytes came back for {sent}");
    assert_eq!((b.mesh.stats().accepted, b.script.requesters().len()), (1, 1));
    let room = b.mesh.0.endpoint.open_connections();
    assert!(room <= 2 * 256 + 1, "{room} handshakes are kept under way");
    eprintln!("{FLOOD} handshakes: {sent} bytes sent, {answered} came back, {retries} retries, {room} under way");
}

/// Answers without end, as fast as the requester reads.
#[derive(Default)]
struct Gusher {
    pieces: AtomicU64,
    ended: AtomicU64,
}

const PIECE_BYTES: usize = 64 << 10;

#[async_trait]
impl Handler for Gusher {
    async fn handle(&self, _: &Mesh, _: certs::tls::Peer, _: Request, out: &mut Responder, _: CancellationToken) {
        struct Ended<'a>(&'a AtomicU64);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _ended = Ended(&self.ended);
        let piece = || Batch { rows: 1, columns: vec![vec![Value::Blob(vec![7; PIECE_BYTES])]] };
        while out.batch(0, piece()).await.is_ok() {
            self.pieces.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_holds_a_bounded_amount_and_stops_nobody_else() {
    let ca = authority();
    let gusher = Arc::new(Gusher::default());
    let config = MeshConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        identity: Arc::new(ca.issue(&name("b"), NODE_VALIDITY).unwrap()),
        host_key: HostKey::random().unwrap(),
        handler: gusher.clone(),
        join_host: None,
        runtime: Arc::new(quinn::TokioRuntime),
    };
    let (mesh, _gossip) = Mesh::start(config).unwrap();
    let address = mesh.local_addr().unwrap();
    let slow = dial(&ca.issue(&name("slow"), NODE_VALIDITY).unwrap(), address).await;
    let mut unread = Vec::new();
    for _ in 0..32 {
        let (mut send, receive) = slow.open_bi().await.unwrap();
        send.write_all(&frame::encode(&Request::Catalog).unwrap()).await.unwrap();
        unread.push((send, receive));
    }
    // Until no more goes out.
    let until = soon();
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = gusher.pieces.load(Ordering::SeqCst);
        if now == before && now > 0 {
            break;
        }
        assert!(Instant::now() < until, "{now} pieces went out to who reads nothing");
        before = now;
    }
    // What the peer's window takes, and what this end may have in flight.
    let bytes = usize::try_from(before).unwrap() * PIECE_BYTES;
    assert!(bytes <= 48 << 20, "{bytes} bytes are kept for a requester that reads nothing");
    // Another one is served.
    let other = dial(&ca.issue(&name("other"), NODE_VALIDITY).unwrap(), address).await;
    let (mut send, receive) = other.open_bi().await.unwrap();
    send.write_all(&frame::encode(&Request::Catalog).unwrap()).await.unwrap();
    let mut reader = FrameReader::new(receive);
    for _ in 0..50 {
        let piece = tokio::time::timeout(PATIENCE, reader.read::<Response>()).await.unwrap().unwrap().unwrap();
        assert!(matches!(piece, Response::Batch { .. }));
    }
    drop(reader);
    slow.close(VarInt::from_u32(0), b"");
    eventually("all the work ended with its requesters", || gusher.ended.load(Ordering::SeqCst) == 33).await;
}

#[tokio::test]
async fn a_slow_reader_is_dropped() {
    let (near, _far_who_reads_nothing) = tokio::io::duplex(1_024);
    let mut out = Responder::new(near).with_patience(Duration::from_millis(200));
    let batch = Batch { rows: 1, columns: vec![vec![Value::Blob(vec![0; 100_000])]] };
    let sent = tokio::time::timeout(PATIENCE, out.batch(0, batch)).await.expect("it is not waited for for ever");
    assert!(matches!(sent, Err(SendError::Gone)), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_has_eight_connections_at_most() {
    let ca = authority();
    let (a, b) = (start(&ca, "a"), start(&ca, "b"));
    b.script.hang.store(true, Ordering::SeqCst);
    let greedy = ca.issue(&name("greedy"), NODE_VALIDITY).unwrap();
    let mut connections = Vec::new();
    // One that is not in use makes room for the next, so each is used.
    for used in 1..=12 {
        let connection = dial(&greedy, b.address).await;
        if let Ok((mut send, receive)) = connection.open_bi().await {
            let _ = send.write_all(&frame::encode(&Request::Catalog).unwrap()).await;
            connections.push((connection, send, receive));
            eventually("it is in use", || b.script.requesters().len() == used.min(8)).await;
        }
    }
    let closed = || connections.iter().filter_map(|(c, ..)| c.close_reason()).collect::<Vec<_>>();
    eventually("four were turned away", || b.mesh.stats().turned_away == 4).await;
    assert_eq!((b.mesh.connections(), b.script.requesters().len(), b.script.cancelled()), (8, 8, 0));
    assert!(closed().iter().all(|reason| reason.to_string().contains("too many connections")), "{:?}", closed());
    b.script.hang.store(false, Ordering::SeqCst);
    a.assert_answers(&b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_has_sixty_four_questions_under_way_at_most() {
    let ca = authority();
    let (a, b) = (start(&ca, "a"), start(&ca, "b"));
    b.script.hang.store(true, Ordering::SeqCst);
    let greedy = dial(&ca.issue(&name("greedy"), NODE_VALIDITY).unwrap(), b.address).await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let (mut send, receive) = tokio::time::timeout(PATIENCE, greedy.open_bi()).await.unwrap().unwrap();
        send.write_all(&frame::encode(&Request::Catalog).unwrap()).await.unwrap();
        open.push((send, receive));
    }
    eventually("they are all being worked on", || b.script.requesters().len() == 64).await;
    let more = tokio::time::timeout(Duration::from_millis(300), greedy.open_bi()).await;
    assert!(more.is_err(), "a sixty-fifth question was let in");
    b.script.hang.store(false, Ordering::SeqCst);
    a.assert_answers(&b).await;
    greedy.close(VarInt::from_u32(0), b"");
    eventually("its work ended with its connection", || b.script.cancelled() == 64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_gossip_and_giant_messages_are_dropped_and_counted() {
    let ca = authority();
    let (a, mut b) = (start(&ca, "a"), start(&ca, "b"));
    let babbler = dial(&ca.issue(&name("babbler"), NODE_VALIDITY).unwrap(), b.address).await;
    let mut giant = babbler.open_uni().await.unwrap();
    // Its stream is stopped or the rest is refused: both are fine.
    let _ = giant.write_all(&vec![1; gossip::MAX_PAYLOAD_BYTES + 1]).await;
    let _ = giant.finish();
    for _ in 0..GOSSIP_QUEUE + 100 {
        let mut stream = tokio::time::timeout(PATIENCE, babbler.open_uni()).await.unwrap().unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.finish().unwrap();
    }
    eventually("what is beyond the queue was dropped", || b.mesh.stats().gossip_dropped == 100).await;
    a.assert_answers(&b).await;
    for _ in 0..GOSSIP_QUEUE {
        assert_eq!(b.gossip.recv().await.unwrap().payload, b"x");
    }
    assert!(b.gossip.try_recv().is_err());
}

fn is_over_budget(answer: &Result<Option<Response>, frame::FrameError>) -> bool {
    matches!(answer, Ok(Some(Response::Failed(failure))) if failure.kind == FailureKind::OverBudget)
}

/// Requests that never come whole: what has come of them is bounded for the member, over all its
/// connections, and others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_never_end_hold_a_bounded_amount() {
    let ca = authority();
    let (a, b) = (start(&ca, "a"), start(&ca, "b"));
    let greedy = ca.issue(&name("greedy"), NODE_VALIDITY).unwrap();
    let before = query_planner::memory::taken_by_all();
    let claim = [&(MAX_FRAME_BYTES as u32).to_le_bytes()[..], &[VERSION]].concat();
    let piece = vec![0; 7 << 20];
    let (mut open, mut refused) = (Vec::new(), 0);
    for _ in 0..2 {
        let connection = dial(&greedy, b.address).await;
        for _ in 0..4 {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(&claim).await.unwrap();
            let mut answer = FrameReader::new(receive);
            tokio::select! {
                written = send.write_all(&piece) => drop(written),
                answer = answer.read::<Response>() => {
                    assert!(is_over_budget(&answer), "{answer:?}");
                    refused += 1;
                }
            }
            open.push((send, answer));
        }
        open.push({
            let (send, receive) = connection.open_bi().await.unwrap();
            (send, FrameReader::new(receive))
        });
    }
    // What was written may still be on its way; then no room is left.
    let mut answers = futures::future::join_all(open.iter_mut().map(|(_, answer)| async {
        matches!(
            tokio::time::timeout(Duration::from_secs(2), answer.read::<Response>()).await,
            Ok(answer) if is_over_budget(&answer)
        )
    }))
    .await;
    answers.retain(|over| *over);
    refused += answers.len();
    assert!(refused >= 3, "{refused} of 8 requests of 8 MiB were refused");
    let held = query_planner::memory::taken_by_all().saturating_sub(before);
    assert!(held <= 40 << 20, "{held} bytes");
    a.assert_answers(&b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_frames_are_given_up_and_the_next_is_read() {
    let ca = authority();
    let (a, b) = (start(&ca, "a"), start(&ca, "b"));
    let peer = dial(&ca.issue(&name("x"), NODE_VALIDITY).unwrap(), b.address).await;
    let frame = frame::encode(&Request::Renew { csr: vec![7; 400] }).unwrap();
    for length in [0, 1, 4, 5, 6, frame.len() - 1] {
        let answer = exchange(&peer, &frame[..length]).await;
        assert!(matches!(answer, Ok(None) | Err(_)), "{length}: {answer:?}");
    }
    let answer = exchange(&peer, &frame).await;
    assert!(matches!(answer, Ok(Some(Response::Catalog(_)))), "{answer:?}");
    a.assert_answers(&b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_gets_what_it_may_request_by_request() {
    use model::LocalRequest;

    let ca = authority();
    let mut b = start(&ca, "b");
    let budget = query_planner::Budget { node_rows: 1, node_bytes: 1, coordinator_bytes: 1 };
    let task =
        query_planner::NodeTask { fragments: Vec::new(), keys: Vec::new(), now_unix_ns: 0, budget, viewer: None };
    let all = [
        Request::Ping,
        Request::Trust,
        Request::Renew { csr: Vec::new() },
        Request::Ask(LocalRequest::Nodes),
        Request::Catalog,
        Request::Task { deadline_ms: 1, task: task.clone() },
        Request::OpenCalls,
        Request::Activities(vec![1]),
        Request::Relay { deadline_ms: 1, task, leaves: Vec::new() },
    ];
    let mut connections = Vec::new();
    // A node's key serves its agent: it neither asks as a person nor, below, does a person's
    // gossip.
    for (role, allowed) in [
        (Role::Node, [true, true, true, false, true, true, true, true, true]),
        (Role::Operator, [true, true, true, true, true, true, true, false, false]),
        (Role::Reader, [true, true, true, true, false, false, false, false, false]),
    ] {
        let identity = ca.issue_as(&name(role.as_str()), role, NODE_VALIDITY).unwrap();
        // Over one connection: each request is judged, not its connection.
        let connection = dial(&identity, b.address).await;
        for (request, allowed) in all.iter().zip(allowed) {
            let answer = exchange(&connection, &frame::encode(request).unwrap()).await.unwrap().unwrap();
            let refused = matches!(&answer, Response::Unsupported(why) if why.starts_with("not allowed"));
            assert_eq!(!refused, allowed, "{role} asks {request:?}: {answer:?}");
        }
        if role != Role::Node {
            let mut gossip = connection.open_uni().await.unwrap();
            let _ = gossip.write_all(b"I am a node").await;
            let stopped = tokio::time::timeout(PATIENCE, gossip.stopped()).await.unwrap();
            assert!(matches!(stopped, Ok(Some(_))), "{stopped:?}");
            assert!(b.gossip.try_recv().is_err());
        }
        connections.push(connection);
    }
    assert_eq!(b.mesh.0.pool.connections(), 1, "only the node may be called back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_ends_while_connected_ends_its_connection() {
    let ca = authority();
    let b = start(&ca, "b");
    let brief = ca.issue(&name("brief"), Duration::from_secs(8)).unwrap();
    let connection = dial(&brief, b.address).await;
    let answer = exchange(&connection, &frame::encode(&Request::Ping).unwrap()).await;
    assert!(matches!(answer, Ok(Some(Response::Pong { .. }))), "{answer:?}");
    let reason = tokio::time::timeout(PATIENCE, connection.closed()).await.unwrap();
    assert!(reason.to_string().contains("certificate has ended"), "{reason}");
    assert_eq!(b.mesh.stats().shut_out, 1);
}
