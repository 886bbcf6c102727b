//! Attacks of another user, uid 65534, as far as a test needs one (then as root only), and what is
//! taken.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use super::*;

const ANOTHER: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives a path to the other user; false where this one may not.
fn give_away(path: &Path) -> bool {
    let given = std::os::unix::fs::lchown(path, Some(ANOTHER), Some(ANOTHER)).is_ok();
    if !given {
        eprintln!("skipped: only root can give files to another user");
    }
    given
}

#[test]
fn what_is_made_is_for_this_user_alone_and_taken_again() {
    let site = tempfile::tempdir().unwrap();
    let path = site.path().join("a/b/c");
    let made = Dir::make_all(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert_eq!(made.path(), fs::canonicalize(&path).unwrap());
    Dir::make(&path).expect("again");
    mode(&path, 0o750);
    assert!(matches!(Dir::make(&path), Err(Refused::Open { .. })));
    Dir::open(&path).expect("others may look, not write");
    mode(&path, 0o702);
    assert!(matches!(Dir::open(&path), Err(Refused::Writable { .. })));
    assert!(Dir::make(&site.path().join("no/such/above")).unwrap_err().is_missing());
}

#[test]
fn a_directory_above_that_all_may_write_to_is_refused_without_the_sticky_bit() {
    let site = tempfile::tempdir().unwrap();
    let (shared, path) = (site.path().join("shared"), site.path().join("shared/mine"));
    Dir::make_all(&path).unwrap();
    mode(&shared, 0o777);
    assert!(matches!(Dir::open(&path), Err(Refused::Writable { path, .. }) if path.ends_with("shared")));
    assert!(matches!(Dir::make(&path), Err(Refused::Writable { .. })));
    mode(&shared, 0o1777);
    Dir::open(&path).expect("nobody else can exchange it");
    mode(&shared, 0o775);
    if chown(&shared, None, Some(ANOTHER)).is_ok() {
        assert!(matches!(Dir::open(&path), Err(Refused::Writable { by, .. }) if by == "group 65534"));
    }
}

#[test]
fn links_of_this_user_are_followed_on_the_way_and_in_the_end() {
    let site = tempfile::tempdir().unwrap();
    let (real, link) = (site.path().join("real"), site.path().join("link"));
    let made = Dir::make_all(&real.join("within")).unwrap();
    symlink("real", &link).unwrap();
    for path in [link.join("within"), link.join("../link/within"), site.path().join("x/../real/within")] {
        let opened = Dir::open(&path);
        match path.starts_with(site.path().join("x")) {
            true => assert!(opened.unwrap_err().is_missing()),
            false => assert_eq!(opened.unwrap().path(), made.path()),
        }
    }
    symlink("b", site.path().join("a")).unwrap();
    symlink("a", site.path().join("b")).unwrap();
    assert!(matches!(Dir::open(&site.path().join("a")), Err(Refused::Links { .. })));
    // An entry of an open directory is no link.
    let opened = Dir::open(site.path()).unwrap();
    assert!(matches!(opened.dir("link"), Err(Refused::Kind { .. })));
    fs::write(real.join("file"), "x").unwrap();
    symlink("real/file", site.path().join("to-file")).unwrap();
    assert!(matches!(opened.file("to-file"), Err(Refused::Kind { wanted: "file", .. })));
    assert!(matches!(opened.append("to-file", 0o600), Err(Refused::Kind { .. })));
}

#[test]
fn another_users_directory_link_and_file_are_refused() {
    let site = tempfile::tempdir().unwrap();
    mode(site.path(), 0o755);
    let theirs = site.path().join("theirs");
    fs::create_dir_all(theirs.join("lib")).unwrap();
    fs::write(theirs.join("lib/code.so"), "x").unwrap();
    let link = site.path().join("link");
    symlink(site.path(), &link).unwrap();
    let planted = site.path().join("planted");
    fs::write(&planted, "x").unwrap();
    if !give_away(&theirs) {
        return;
    }
    assert!(give_away(&link) && give_away(&planted));
    let belongs = |refused: Result<Dir, Refused>| matches!(refused, Err(Refused::Owner { owner: ANOTHER, .. }));
    assert!(belongs(Dir::open(&theirs)) && belongs(Dir::make(&theirs)));
    // What is below is this user's, and yet theirs to exchange.
    assert!(belongs(Dir::open(&theirs.join("lib"))));
    assert!(matches!(program(&theirs.join("lib/code.so")), Err(Refused::Owner { .. })));
    assert!(belongs(Dir::open(&link)) && belongs(Dir::open(&link.join("theirs"))));
    let opened = Dir::open(site.path()).unwrap();
    assert!(matches!(opened.read("planted", 10), Err(Refused::Owner { .. })));
    assert!(matches!(program(&planted), Err(Refused::Owner { .. })));
    assert!(file_named(&theirs.join("lib/code.so")).is_err(), "this user's file in their directory");
    file_named(&planted).expect("root has asked for it by name: data, of that one user");
    Dir::open_named(&theirs).expect("likewise");
    assert_eq!(Dir::open_of(&theirs, ANOTHER).unwrap().owner(), ANOTHER);
    assert!(Dir::open_of(&theirs, 65533).is_err());
    chown(theirs.join("lib"), Some(65533), None).unwrap();
    assert!(Dir::open_named(&theirs.join("lib")).is_err(), "in the directory of a third");
}

#[test]
fn files_are_replaced_whole_and_read_within_bounds() {
    let site = tempfile::tempdir().unwrap();
    let dir = Dir::open(site.path()).unwrap();
    dir.replace("f", b"one", 0o755).unwrap();
    symlink("/etc/passwd", site.path().join("g")).unwrap();
    dir.replace("g", b"two", 0o600).expect("in the link's place");
    assert_eq!((dir.read("f", 3).unwrap(), dir.read("g", 9).unwrap()), (b"one".to_vec(), b"two".to_vec()));
    assert!(matches!(dir.read("f", 2), Err(Refused::Size { most: 2, .. })));
    assert_eq!(fs::metadata(site.path().join("g")).unwrap().mode() & 0o777, 0o600);
    nix::unistd::mkfifo(&site.path().join("fifo"), Mode::S_IRWXU).unwrap();
    assert!(matches!(dir.file("fifo"), Err(Refused::Kind { .. })));
    assert_eq!(fs::read_dir(site.path()).unwrap().count(), 3);
    program(&site.path().join("f")).expect("this user's own");
    mode(&site.path().join("f"), 0o777);
    assert!(matches!(program(&site.path().join("f")), Err(Refused::Writable { .. })));
    assert!(matches!(dir.file("f"), Err(Refused::Writable { .. })));
}
