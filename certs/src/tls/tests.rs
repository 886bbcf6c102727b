//! Real handshakes, in memory: a client and a server connection, their records carried over by
//! hand.

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use rustls::time_provider::TimeProvider;
use rustls::{ClientConnection, HandshakeKind, ServerConnection};

use super::*;
use crate::{Authority, Issuer, NODE_VALIDITY};

const HOUR: Duration = Duration::from_secs(3600);

fn authority(mesh: &str) -> Authority {
    Authority::create(&mesh.parse().unwrap()).unwrap()
}

fn node(ca: &Authority, name: &str) -> Identity {
    ca.issue(&name.parse().unwrap(), NODE_VALIDITY).unwrap()
}

struct Pair {
    client: ClientConnection,
    server: ServerConnection,
}

impl Pair {
    fn new(client: ClientConfig, server: ServerConfig) -> Self {
        Self::dial(Arc::new(client), Arc::new(server), SERVER_NAME)
    }

    fn dial(client: Arc<ClientConfig>, server: Arc<ServerConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self { client: ClientConnection::new(client, name).unwrap(), server: ServerConnection::new(server).unwrap() }
    }

    /// Carries records both ways until neither side has more to send; the first error of either
    /// side.
    fn pump(&mut self) -> Result<(), rustls::Error> {
        loop {
            let mut moved = false;
            let mut bytes = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut bytes).unwrap();
            }
            moved |= !bytes.is_empty();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                self.server.read_tls(&mut rest).unwrap();
                self.server.process_new_packets()?;
            }
            let mut bytes = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut bytes).unwrap();
            }
            moved |= !bytes.is_empty();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                self.client.read_tls(&mut rest).unwrap();
                self.client.process_new_packets()?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// The handshake, and a byte in each direction.
    fn shake(&mut self) -> Result<(), rustls::Error> {
        self.pump()?;
        assert!(!self.client.is_handshaking() && !self.server.is_handshaking());
        self.client.writer().write_all(b"?").unwrap();
        self.server.writer().write_all(b"!").unwrap();
        self.pump()?;
        let (mut asked, mut answered) = ([0], [0]);
        self.server.reader().read_exact(&mut asked).unwrap();
        self.client.reader().read_exact(&mut answered).unwrap();
        assert_eq!((&asked, &answered), (b"?", b"!"));
        Ok(())
    }

    fn seen_by_server(&self) -> &[CertificateDer<'static>] {
        self.server.peer_certificates().unwrap_or_default()
    }

    fn seen_by_client(&self) -> &[CertificateDer<'static>] {
        self.client.peer_certificates().unwrap_or_default()
    }
}

fn meet(client: &Identity, server: &Identity, accept_join: bool) -> Result<Pair, rustls::Error> {
    let mut pair = Pair::new(client_config(client)?, server_config(server, accept_join)?);
    pair.shake().map(|()| pair)
}

impl From<Error> for rustls::Error {
    fn from(error: Error) -> Self {
        panic!("a configuration was refused: {error}")
    }
}

#[track_caller]
fn assert_fails_with(result: Result<Pair, rustls::Error>, expected: &str) {
    let error = result.err().expect("the handshake should have failed").to_string();
    assert!(error.contains(expected), "{error}");
}

#[derive(Debug)]
struct Shifted(Duration);

impl TimeProvider for Shifted {
    fn current_time(&self) -> Option<UnixTime> {
        Some(chain::unix_time(SystemTime::now() + self.0))
    }
}

#[test]
fn members_know_each_other() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    for accept_join in [false, true] {
        let pair = meet(&a, &b, accept_join).unwrap();
        assert_eq!(peer_node(pair.seen_by_server(), &b).unwrap().as_str(), "a");
        assert_eq!(peer_node(pair.seen_by_client(), &a).unwrap().as_str(), "b");
        assert_eq!(pair.server.alpn_protocol(), Some(ALPN_MESH));
        assert_eq!(pair.server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    }
}

#[test]
fn the_right_node_must_answer_when_called_by_name() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    let server = Arc::new(server_config(&b, true).unwrap());
    let client = Arc::new(client_config(&a).unwrap());
    Pair::dial(client.clone(), server.clone(), &server_name(b.node())).shake().unwrap();
    let error = Pair::dial(client, server, &server_name(a.node())).shake().unwrap_err().to_string();
    assert!(error.contains("the node that answered is b"), "{error}");
    // Whatever a node's name is made of, it can be called.
    let strange: NodeName = "_A..b-".repeat(10).parse().unwrap();
    ServerName::try_from(server_name(&strange)).unwrap();
}

#[test]
fn another_ca_is_refused_by_both_sides() {
    // The same names: only the keys differ.
    let (ours, theirs) = (authority("m"), authority("m"));
    let (a, b) = (node(&ours, "a"), node(&theirs, "b"));
    assert_fails_with(meet(&a, &b, true), "another CA");
    assert_fails_with(meet(&b, &a, false), "another CA");
    // A client that does not mind the server's CA is refused by the server.
    for accept_join in [false, true] {
        let mut careless = client_config(&b).unwrap();
        careless.dangerous().set_certificate_verifier(Arc::new(ServerVerifier {
            mesh: a.mesh().clone(),
            trust: Trust::Roots(chain::roots(a.authorities()).unwrap()),
            revoked: None,
        }));
        let error = Pair::new(careless, server_config(&a, accept_join).unwrap()).shake().unwrap_err();
        assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
    }
    let error = peer_node(b.chain(), &a).unwrap_err();
    assert!(matches!(error, Error::Untrusted(_)), "{error}");
}

#[test]
fn another_mesh_name_under_the_same_ca_is_refused_by_both_sides() {
    let ca = authority("m");
    let a = node(&ca, "a");
    let other = ca.issue_in(&"x".parse().unwrap(), &"b".parse().unwrap(), NODE_VALIDITY).unwrap();
    assert_fails_with(meet(&a, &other, true), "for mesh x, ours is m");
    let mut careless = client_config(&other).unwrap();
    careless.dangerous().set_certificate_verifier(Arc::new(ServerVerifier {
        mesh: a.mesh().clone(),
        trust: Trust::Roots(chain::roots(a.authorities()).unwrap()),
        revoked: None,
    }));
    let error = Pair::new(careless, server_config(&a, true).unwrap()).shake().unwrap_err().to_string();
    assert!(error.contains("for mesh x, ours is m"), "{error}");
    assert!(matches!(peer_node(other.chain(), &a), Err(Error::OtherMesh { .. })));
}

#[test]
fn who_shows_no_certificate_is_no_member() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    let nobody = || {
        let mut config = ClientConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier {
                mesh: a.mesh().clone(),
                trust: Trust::Roots(chain::roots(a.authorities()).unwrap()),
                revoked: None,
            }))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN_MESH.to_vec()];
        config
    };
    let error = Pair::new(nobody(), server_config(&b, false).unwrap()).shake().unwrap_err();
    assert_eq!(error, rustls::Error::NoCertificatesPresented);
    let mut pair = Pair::new(nobody(), server_config(&b, true).unwrap());
    pair.shake().unwrap();
    assert!(matches!(peer_node(pair.seen_by_server(), &b), Err(Error::NoCertificate)));
}

#[test]
fn an_expired_certificate_is_refused_by_both_sides() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    let short = ca.issue(&"short".parse().unwrap(), HOUR).unwrap();
    meet(&a, &short, true).unwrap();
    let later = Arc::new(Shifted(2 * HOUR));
    let mut client = client_config(&a).unwrap();
    client.time_provider = later.clone();
    let error = Pair::new(client, server_config(&short, true).unwrap()).shake().unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    let mut server = server_config(&b, true).unwrap();
    server.time_provider = later;
    let error = Pair::new(client_config(&short).unwrap(), server).shake().unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    let now = SystemTime::now();
    peer_node_at(short.chain(), &b, now).unwrap();
    let error = peer_node_at(short.chain(), &b, now + 2 * HOUR).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
    // A certificate from a host whose clock is a little ahead is good.
    peer_node_at(short.chain(), &b, now - HOUR / 2).unwrap();
}

#[test]
fn a_resumed_session_still_tells_who_it_is() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    let (client, server) = (Arc::new(client_config(&a).unwrap()), Arc::new(server_config(&b, true).unwrap()));
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let mut pair = Pair::dial(client.clone(), server.clone(), &server_name(b.node()));
        pair.shake().unwrap();
        assert_eq!(peer_node(pair.seen_by_server(), &b).unwrap().as_str(), "a");
        assert_eq!(peer_node(pair.seen_by_client(), &a).unwrap().as_str(), "b");
        kinds.push(pair.server.handshake_kind().unwrap());
    }
    assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed]);
}

fn token(ca_of: &str) -> (tempfile::TempDir, Issuer, JoinToken) {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::init(dir.path(), &ca_of.parse().unwrap()).unwrap();
    let token = issuer.tokens().create(HOUR, NonZeroU32::new(1)).unwrap();
    (dir, issuer, token)
}

#[test]
fn a_joiner_recognises_its_mesh_by_the_pin_and_speaks_join_only() {
    let (_dir, issuer, token) = token("m");
    let founder = node(issuer.authority(), "founder");
    let mut pair = Pair::new(join_client_config(&token).unwrap(), server_config(&founder, true).unwrap());
    pair.shake().unwrap();
    assert_eq!(pair.server.alpn_protocol(), Some(ALPN_JOIN));
    assert!(pair.seen_by_server().is_empty());
    // A node that admits nobody does not even speak the protocol.
    let error =
        Pair::new(join_client_config(&token).unwrap(), server_config(&founder, false).unwrap()).shake().unwrap_err();
    assert_eq!(error, rustls::Error::NoApplicationProtocol);
    // Nor does a member mistake a joiner's protocol for the mesh's.
    let mut member = client_config(&founder).unwrap();
    member.alpn_protocols = vec![b"other/1".to_vec()];
    assert!(Pair::new(member, server_config(&founder, true).unwrap()).shake().is_err());
}

#[test]
fn a_token_for_another_ca_stops_the_joiner_before_it_says_anything() {
    let (_dir, _issuer, token) = token("m");
    let impostor = node(&authority("m"), "founder");
    let result = Pair::new(join_client_config(&token).unwrap(), server_config(&impostor, true).unwrap()).shake();
    let error = result.unwrap_err().to_string();
    assert!(plain_reason(&error).contains("does not show the CA that the token pins"), "{error}");
    // What rustls wraps around our reasons is what we take off again.
    assert!(!plain_reason(&error).contains("Other"), "{error}");
    assert_eq!(plain_reason("invalid peer certificate: Expired"), "invalid peer certificate: Expired");
}

#[test]
fn showing_the_pinned_ca_is_not_enough() {
    let (_dir, issuer, token) = token("m");
    let verifier = ServerVerifier { mesh: token.mesh().clone(), trust: Trust::Pinned(token.ca()), revoked: None };
    let (ca, now) = (issuer.authority(), chain::unix_time(SystemTime::now()));
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let verify = |identity: &Identity| {
        let certs = [identity.chain()[0].clone(), ca.certificate().clone()];
        verifier.verify(&certs, &name, now)
    };
    verify(&node(ca, "founder")).unwrap();
    // The leaf of another CA with the pinned CA's certificate, which anybody may have seen.
    assert!(matches!(verify(&node(&authority("m"), "founder")), Err(Error::Untrusted(_))));
    let other_mesh = ca.issue_in(&"x".parse().unwrap(), &"founder".parse().unwrap(), NODE_VALIDITY).unwrap();
    assert!(matches!(verify(&other_mesh), Err(Error::OtherMesh { .. })));
    // The CA certificate in place of a leaf.
    let certs = [ca.certificate().clone(), ca.certificate().clone()];
    assert!(verifier.verify(&certs, &name, now).is_err());
    assert!(verifier.verify(&certs[..1], &name, now).is_err());
}

#[test]
fn the_key_exchange_is_hybrid_post_quantum() {
    let ca = authority("m");
    let pair = meet(&node(&ca, "a"), &node(&ca, "b"), true).unwrap();
    let group = pair.server.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
}

#[test]
fn a_certificate_that_has_not_begun_is_refused_by_both_sides() {
    let ca = authority("m");
    let a = node(&ca, "a");
    let early = ca.issue_from(&"early".parse().unwrap(), SystemTime::now() + 2 * HOUR, HOUR).unwrap();
    assert_fails_with(meet(&a, &early, true), "not valid yet");
    // webpki's words at the server's side.
    let error = meet(&early, &a, true).err().unwrap().to_string();
    assert!(error.contains("not valid yet") || error.contains("NotValidYet"), "{error}");
    let error = peer_node(early.chain(), &a).unwrap_err().to_string();
    assert!(error.contains("not valid yet"), "{error}");
}

#[test]
fn only_a_node_may_answer_and_roles_are_told() {
    let ca = authority("m");
    let a = node(&ca, "a");
    let reader = ca.issue_as(&"eve".parse().unwrap(), Role::Reader, NODE_VALIDITY).unwrap();
    assert_fails_with(meet(&a, &reader, false), "is reader's");
    let pair = meet(&reader, &a, false).unwrap();
    let seen = peer(pair.seen_by_server(), &a).unwrap();
    assert_eq!((seen.name.as_str(), seen.role), ("eve", Role::Reader));
    assert!(matches!(peer_node(pair.seen_by_server(), &a), Err(Error::WrongRole { .. })));
}

#[test]
fn a_revoked_certificate_is_refused_by_both_sides() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    meet(&a, &b, true).unwrap();
    let entry = crate::Revoked { serial: b.serial().to_owned(), until_unix_s: u64::from(u32::MAX), shuts_out: None };
    let list = TrustList::sign(1, &[&ca], [entry], SystemTime::now()).unwrap();
    let a = a.with_trust(Arc::new(list)).unwrap();
    assert_fails_with(meet(&a, &b, true), "revoked");
    assert_fails_with(meet(&b, &a, true), "revoked");
    assert!(matches!(peer(b.chain(), &a), Err(Error::Revoked { .. })));
}

#[test]
fn a_signature_is_of_one_node_and_one_message() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    let signature = b.sign(b"facts").unwrap();
    let check = |node: &str, of: &Identity, message: &[u8]| check_signed(&a, node, &of.chain()[0], message, &signature);
    check("b", &b, b"facts").unwrap();
    assert!(check("b", &b, b"fact5").is_err());
    assert!(matches!(check("a", &b, b"facts"), Err(Error::OtherNode { .. })));
    assert!(check("a", &a, b"facts").is_err());
    assert!(check("b", &node(&authority("m"), "b"), b"facts").is_err());
}

/// A TLS record that holds one handshake message (RFC 5246, 6.2.1 and 7.4).
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[kind], &length[1..], body].concat();
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    [&[22, 3, 3], &length[..], &message].concat()
}

/// An extension (RFC 5246, 7.4.1.4).
fn extension(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[0, kind, 0, u8::try_from(body.len()).unwrap()], body].concat()
}

#[test]
fn an_older_tls_is_refused_by_both_sides() {
    let ca = authority("m");
    let (a, b) = (node(&ca, "a"), node(&ca, "b"));
    // A client that knows TLS 1.2 and nothing newer: ECDHE-ECDSA with AES-GCM over P-256, and our
    // protocol.
    let protocol = [&[u8::try_from(ALPN_MESH.len()).unwrap()], ALPN_MESH].concat();
    let protocols = [&[0, u8::try_from(protocol.len()).unwrap()], &protocol[..]].concat();
    let extensions = [
        extension(10, &[0, 2, 0, 23]),
        extension(11, &[1, 0]),
        extension(13, &[0, 2, 4, 3]),
        extension(16, &protocols),
    ]
    .concat();
    let length = u16::try_from(extensions.len()).unwrap().to_be_bytes();
    let hello = [&[3, 3], &[7; 32][..], &[0], &[0, 2, 0xc0, 0x2b], &[1, 0], &length, &extensions].concat();
    for accept_join in [false, true] {
        let mut server = ServerConnection::new(Arc::new(server_config(&b, accept_join).unwrap())).unwrap();
        server.read_tls(&mut record(1, &hello).as_slice()).unwrap();
        let error = server.process_new_packets().unwrap_err();
        assert!(matches!(error, rustls::Error::PeerIncompatible(_)), "{error:?}");
        assert!(server.is_handshaking());
    }
    // A server that answers our hello with TLS 1.2.
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let mut client = ClientConnection::new(Arc::new(client_config(&a).unwrap()), name).unwrap();
    let mut ours = Vec::new();
    client.write_tls(&mut ours).unwrap();
    // The session id of our hello, as a server of that age would repeat it: after record and
    // message header, version and random.
    let id = &ours[43..=43 + usize::from(ours[43])];
    let hello = [&[3, 3], &[9; 32][..], id, &[0xc0, 0x2b], &[0]].concat();
    client.read_tls(&mut record(2, &hello).as_slice()).unwrap();
    let error = client.process_new_packets().unwrap_err();
    assert!(matches!(error, rustls::Error::PeerIncompatible(_)), "{error:?}");
    // One on the way that takes TLS 1.3 out of our hello (the extension supported_versions names
    // 1.2 instead).
    let at = ours.windows(7).position(|bytes| bytes == [0, 43, 0, 3, 2, 3, 4]).expect("we offer 1.3 alone");
    ours[at + 6] = 3;
    let mut server = ServerConnection::new(Arc::new(server_config(&b, true).unwrap())).unwrap();
    server.read_tls(&mut ours.as_slice()).unwrap();
    let error = server.process_new_packets().unwrap_err();
    assert!(matches!(error, rustls::Error::PeerIncompatible(_)), "{error:?}");
}
