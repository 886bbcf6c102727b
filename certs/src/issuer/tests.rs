//! Tests of [`Issuer`]: names, renewal, revocation and a new CA, in a directory of files.

use super::*;
use crate::NODE_VALIDITY;

#[test]
fn a_name_goes_out_once_unless_the_owner_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
    let (a, b): (NodeName, NodeName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let first = issuer.issue(&a, NODE_VALIDITY, Reissue::Refuse).unwrap();
    issuer.issue(&b, NODE_VALIDITY, Reissue::Refuse).unwrap();
    // Another process sees the same list.
    let issuer = Issuer::open(dir.path()).unwrap();
    let error = issuer.issue(&a, NODE_VALIDITY, Reissue::Refuse).unwrap_err();
    assert!(matches!(&error, Error::NameTaken { .. }) && error.to_string().contains("--name"), "{error}");
    let second = issuer.issue(&a, NODE_VALIDITY, Reissue::Allow).unwrap();
    let issued = issuer.issued().unwrap();
    let of_a: Vec<_> = issued.iter().filter(|issued| issued.name == a).map(|issued| issued.fingerprint).collect();
    assert_eq!(of_a, [first.fingerprint(), second.fingerprint()]);
    assert_ne!(issued[0].serial, issued[2].serial);
}

#[test]
fn a_name_is_free_again_when_its_certificate_ended() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
    let name: NodeName = "a".parse().unwrap();
    let identity = issuer.issue(&name, Duration::from_secs(60), Reissue::Refuse).unwrap();
    let lock = DirLock::take(&issuer.dir).unwrap();
    assert!(issuer.check_free(&lock, None, &name, identity.not_after()).is_err());
    issuer.check_free(&lock, None, &name, identity.not_after() + Duration::from_secs(1)).unwrap();
}

/// A mesh with the identities of its nodes `a` and `b`.
fn founded(dir: &Path) -> (Issuer, [Identity; 2]) {
    let issuer = Issuer::init(dir, &"m".parse().unwrap()).unwrap();
    let identities =
        ["a", "b"].map(|name| issuer.issue(&name.parse().unwrap(), NODE_VALIDITY, Reissue::Refuse).unwrap());
    (issuer, identities)
}

fn renewed(issuer: &Issuer, before: &Identity) -> Result<Identity, Error> {
    let (csr, pending) = crate::renew::request()?;
    let chain = issuer.renew(before.node(), before.role(), before.serial(), &csr)?;
    pending.complete(chain.iter().map(|der| der.to_vec()).collect(), before)
}

#[test]
fn a_renewal_keeps_name_and_role_and_is_on_record() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap().with_validity(Duration::from_secs(600));
    for (name, role) in [("a", Role::Node), ("o", Role::Operator)] {
        let name: NodeName = name.parse().unwrap();
        let (each, all) = (Duration::from_secs(300), Duration::from_secs(900));
        let first = match role {
            Role::Node => issuer.issue(&name, each, Reissue::Refuse).unwrap(),
            _ => issuer.issue_renewable(&name, role, each, all, Reissue::Refuse).unwrap(),
        };
        std::thread::sleep(Duration::from_millis(1_100));
        let second = renewed(&issuer, &first).unwrap();
        assert_eq!((second.node(), second.role()), (&name, role));
        assert!(second.not_after() > first.not_after() && second.serial() != first.serial());
        assert!(issuer.issued().unwrap().iter().any(|issued| issued.serial == second.serial()));
        second.check_valid(SystemTime::now()).unwrap();
    }
    // A person's certificate ends when it was to end at its issue, however often it is renewed,
    // and without such an end it is not renewed at all.
    let (p, each) = ("p".parse().unwrap(), Duration::from_secs(300));
    let first = issuer.issue_renewable(&p, Role::Reader, each, Duration::from_secs(200), Reissue::Refuse).unwrap();
    let second = renewed(&issuer, &first).unwrap();
    let third = renewed(&issuer, &second).unwrap();
    assert!(third.not_after() <= SystemTime::now() + Duration::from_secs(200));
    let first = issuer.issue_as(&p, Role::Reader, NODE_VALIDITY, Reissue::Allow).unwrap();
    let error = renewed(&issuer, &first).unwrap_err();
    assert!(matches!(error, Error::NotRenewable { .. }) && error.to_string().contains("--reissue"), "{error}");
    // What is not for this key or node is not taken.
    let (a, o) = (issuer.issue(&"x".parse().unwrap(), NODE_VALIDITY, Reissue::Refuse).unwrap(), "o".parse().unwrap());
    let (csr, pending) = crate::renew::request().unwrap();
    let chain = issuer.renew(&o, Role::Node, "00", &csr).unwrap();
    assert!(matches!(pending.complete(vec![chain[0].to_vec()], &a), Err(Error::OtherNode { .. })));
    let (_, pending) = crate::renew::request().unwrap();
    assert!(pending.complete(vec![a.chain()[0].to_vec()], &a).is_err());
    assert!(issuer.renew(&o, Role::Node, "00", b"garbage").is_err());
}

#[test]
fn who_renews_without_end_is_refused_and_the_ca_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, [of_a, of_b]) = founded(dir.path());
    let mut refused = 0;
    for _ in 0..200 {
        match renewed(&issuer, &of_a) {
            Ok(_) => {}
            Err(Error::TooOften { again_s, .. }) => {
                assert!(again_s <= NODE_VALIDITY.as_secs() / 3, "{again_s}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused >= 190, "{refused} of 200 were refused");
    // Others renew, join and are revoked as before; later it may renew again.
    renewed(&issuer, &of_b).unwrap();
    issuer.issue(&"c".parse().unwrap(), NODE_VALIDITY, Reissue::Refuse).unwrap();
    let lock = DirLock::take(&issuer.dir).unwrap();
    let later = SystemTime::now() + NODE_VALIDITY / 3 + Duration::from_secs(2);
    issuer.issued.check_pace(&lock, of_a.node(), NODE_VALIDITY.as_secs(), later).unwrap();
    drop(lock);
    let revoked = issuer.revoke("a").unwrap();
    assert!(revoked.len() < 12 && issuer.trust().unwrap().unwrap().revokes(of_a.serial()), "{}", revoked.len());
}

#[test]
fn what_is_revoked_is_listed_not_renewed_and_its_name_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, [of_a, of_b]) = founded(dir.path());
    let a = of_a.node().clone();
    let again = renewed(&issuer, &of_a).unwrap();
    assert!(matches!(issuer.revoke("c"), Err(Error::NotIssued)));
    // By name: every certificate of it. By serial: that one.
    assert_eq!(issuer.revoke("a").unwrap().len(), 2);
    assert_eq!(issuer.revoke("a").unwrap().len(), 0);
    assert_eq!(issuer.revoke(of_b.serial()).unwrap().len(), 1);
    let list = Issuer::open(dir.path()).unwrap().trust().unwrap().unwrap();
    assert_eq!(list.number(), 3);
    for revoked in [&of_a, &again, &of_b] {
        assert!(list.revokes(revoked.serial()));
        assert!(matches!(renewed(&issuer, revoked), Err(Error::Revoked { .. })));
    }
    assert!(list.shuts_out("a") && list.shuts_out("b"));
    let fresh = issuer.issue(&a, NODE_VALIDITY, Reissue::Refuse).unwrap();
    assert_eq!((fresh.trust_number(), fresh.is_revoked()), (4, false));
    // Who has a certificate again is listed again, and its old ones stay revoked.
    let list = issuer.trust().unwrap().unwrap();
    assert!(!list.shuts_out("a") && list.shuts_out("b") && list.revokes(of_a.serial()));
    // The list is kept with the identity.
    fresh.save(dir.path()).unwrap();
    let loaded = Identity::load(dir.path()).unwrap();
    assert!(crate::tls::peer(of_a.chain(), &loaded).is_err());
}

#[test]
fn a_new_ca_takes_over_while_both_are_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, [of_a, of_b]) = founded(dir.path());
    let (a, b) = (of_a.node().clone(), of_b.node().clone());
    assert!(matches!(issuer.finish_rotation(false), Err(Error::Rotation(_))));
    let issuer = issuer.rotate().unwrap();
    assert!(Issuer::open(dir.path()).unwrap().rotate().is_err());
    // Who trusts the old CA learns of the new one, and trusts both.
    let learn = |identity: &Identity| {
        let list = issuer.trust().unwrap().unwrap();
        let read = TrustList::verify(list.bytes(), identity.mesh(), identity.authorities()).unwrap();
        identity.with_trust(std::sync::Arc::new(read))
    };
    let (of_a, of_b) = (learn(&of_a).unwrap(), learn(&of_b).unwrap());
    assert_eq!((of_a.authorities().len(), of_a.is_of_first_authority()), (2, false));
    let new_a = renewed(&issuer, &of_a).unwrap();
    assert!(new_a.is_of_first_authority());
    assert_eq!(crate::tls::peer_node(new_a.chain(), &of_b).unwrap(), a);
    assert_eq!(crate::tls::peer_node(of_b.chain(), &new_a).unwrap(), b);
    // Not before everybody has renewed.
    let error = issuer.finish_rotation(false).unwrap_err().to_string();
    assert!(error.contains(": b;"), "{error}");
    let new_b = renewed(&issuer, &of_b).unwrap();
    issuer.finish_rotation(false).unwrap();
    let (done_a, done_b) = (learn(&new_a).unwrap(), learn(&new_b).unwrap());
    assert_eq!(done_a.authorities().len(), 1);
    assert_eq!(crate::tls::peer_node(done_b.chain(), &done_a).unwrap(), b);
    assert!(crate::tls::peer_node(of_b.chain(), &done_a).is_err());
    // Who slept through it all has no way back but to join.
    assert!(learn(&of_b).is_err());
    Issuer::open(dir.path()).unwrap().rotate().unwrap();
}

#[test]
fn many_at_once_get_a_name_once() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap();
    let name: NodeName = "a".parse().unwrap();
    let won = std::thread::scope(|scope| {
        let one = || issuer.issue(&name, NODE_VALIDITY, Reissue::Refuse).is_ok();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum::<u32>()
    });
    assert_eq!(won, 1);
    assert_eq!(issuer.issued().unwrap().len(), 1);
}
