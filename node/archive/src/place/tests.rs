//! Directories and buckets, and what may be put there.

use std::sync::atomic::Ordering;

use std::io::Write as _;

use super::upload::PART_BYTES;
use super::*;
use crate::web::tests::{MUCH, Server};

#[test]
fn files_of_a_directory_appear_complete_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
    assert!(place.read("a/b=c/x.json").unwrap().is_none());
    place.write("a/b=c/x.json", "one").unwrap();
    place.write("a/b=c/x.json", "two").unwrap();
    assert_eq!(place.read("a/b=c/x.json").unwrap().unwrap(), "two");
    let mut upload = place.upload("a/b=c/long", u64::MAX);
    upload.write_all(&vec![7; PART_BYTES + 5]).unwrap();
    assert_eq!(place.files("a/b=c").unwrap(), ["x.json"]);
    drop(upload);
    assert_eq!(std::fs::read_dir(dir.path().join("a/b=c")).unwrap().count(), 1, "nothing is left of it");
    let mut upload = place.upload("a/b=c/long", u64::MAX);
    upload.write_all(&vec![7; PART_BYTES + 5]).unwrap();
    assert_eq!(upload.finish().unwrap(), PART_BYTES as u64 + 5);
    assert_eq!(place.read_range("a/b=c/long", 3..5).unwrap(), [7, 7].as_slice());
    assert!(place.files("nothing").unwrap().is_empty());
}

#[test]
fn what_cannot_be_an_archive_says_so_and_secrets_are_not_shown() {
    let none = Settings::default();
    for (name, words) in
        [("ftp://x/y", "s3://BUCKET"), ("s3://", "s3://BUCKET"), ("/nowhere/at/all", "no such directory")]
    {
        let error = Place::open(name, &none).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "# of the bucket\nexport AWS_SECRET_ACCESS_KEY=\"hush\"\n").unwrap();
    let error = Settings::of_file(&file).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = Settings::of_file(&file).unwrap();
    assert_eq!(settings.0.get("AWS_SECRET_ACCESS_KEY").map(String::as_str), Some("hush"));
    assert!(!format!("{settings:?}").contains("hush"));
}

/// A bucket at an address.
fn bucket(url: &str) -> Place {
    let settings = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_REGION", "x"),
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ALLOW_HTTP", "true"),
    ];
    let settings = Settings(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    Place::open("s3://bucket/prefix", &settings).unwrap()
}

#[test]
fn what_a_bucket_says_is_cut() {
    static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
    for head in ["403 Forbidden", "400 Bad Request"] {
        let server = Server::start(head, &PIECE, MUCH / PIECE.len());
        let place = bucket(&server.url);
        for error in [place.read("nodes/x").unwrap_err(), place.files("nodes").unwrap_err()] {
            let text = error.to_string();
            assert!(text.chars().count() <= REASON_CHARS + 100 && !text.contains("hush"), "{}", text.len());
        }
        assert!(server.sent.load(Ordering::SeqCst) < MUCH, "{head}: all was read");
    }
    // A success is read as far as was asked for.
    let head = "200 OK\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\nETag: \"x\"";
    let server = Server::start(head, &PIECE, MUCH / PIECE.len());
    assert!(bucket(&server.url).read("nodes/x").is_err());
    assert!(bucket(&server.url).files("nodes").is_err());
    assert!(server.sent.load(Ordering::SeqCst) < MUCH, "all was read");
}

#[test]
fn a_bucket_that_redirects_is_refused_and_nothing_is_sent_there() {
    let other = Server::start("200 OK\r\nETag: \"x\"", b"", 0);
    let head: &'static str = format!("307 Temporary Redirect\r\nLocation: {}/", other.url).leak();
    let error = bucket(&Server::start(head, b"", 0).url).write("nodes/x", "rows").unwrap_err().to_string();
    assert!(error.contains("Give the address"), "{error}");
    assert_eq!(other.asked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_pipe_in_an_archive_blocks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
    std::fs::create_dir(dir.path().join("nodes")).unwrap();
    let pipe = dir.path().join("nodes/node=n1.0000000000000001.json");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero byte and lives until the call is over.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("nodes/zero")).unwrap();
    for name in ["nodes/node=n1.0000000000000001.json", "nodes/zero"] {
        for error in [place.read(name).unwrap_err(), place.read_range(name, 0..4).unwrap_err()] {
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
        assert!(place.read_all(&[name.to_owned()], 9).is_err());
    }
    assert!(place.files("nodes").unwrap().is_empty(), "neither is a file of an archive");
    // The length that a manifest claims makes no room.
    place.write("short", "abc").unwrap();
    assert!(place.read_range("short", 0..1 << 60).is_err());
    assert_eq!(place.read_all(&["short".to_owned()], 2).unwrap(), [Content::TooLong]);
}

#[test]
fn a_listing_without_end_is_given_up() {
    /// Each page says that there is another.
    const PAGE: &[u8] = b"<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>\
        <NextContinuationToken>again</NextContinuationToken><KeyCount>0</KeyCount></ListBucketResult>";
    let head: &'static str = format!("200 OK\r\nContent-Length: {}", PAGE.len()).leak();
    let server = Server::start(head, PAGE, 1);
    let error = bucket(&server.url).files("nodes").unwrap_err().to_string();
    assert!(error.contains("more than") && error.contains("entries"), "{error}");
    assert!(server.asked.load(Ordering::SeqCst) <= 2_000, "{:?}", server.asked);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    for name in 0..20 {
        std::fs::write(dir.path().join("d").join(name.to_string()), "").unwrap();
    }
    let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
    let names = |most| {
        let (key, files) = (Key::from("d"), place.files.clone());
        place.wait(async move { files.names(key, most).await })
    };
    assert_eq!(names(20).unwrap().files.len(), 20);
    assert!(names(19).unwrap_err().to_string().contains("more than 19 entries"));
}
