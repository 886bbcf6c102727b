//! Beyond this host: TLS, tokens and the rate of requests.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::json;

use crate::common::http::{Answer, Served, read};
use crate::common::job_stores::EndedJob;
use crate::common::{Lab, PATIENCE, has, rankmesh, run, stderr, stdout};

/// A CA, and a certificate of it with its key, as files.
struct Certificates {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    roots: rustls::RootCertStore,
}

fn certificates(lab: &Lab, name: &str) -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("{name} CA"));
    let ca = params.self_signed(&ca_key).expect("signed");
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer).expect("signed");
    let write = |kind: &str, pem: String| {
        let path = lab.path(&format!("{name}-{kind}.pem"));
        std::fs::write(&path, pem).expect("written");
        path
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).expect("a root");
    Certificates {
        ca: write("ca", ca.pem()),
        cert: write("cert", cert.pem()),
        key: write("key", key.serialize_pem()),
        roots,
    }
}

fn request(method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    head.push_str(&format!("content-length: {}\r\n", body.len()));
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    format!("{head}\r\n{body}")
}

/// An answer over TLS, by a client that trusts `roots` only.
fn tls(place: &str, roots: &rustls::RootCertStore, request: &str) -> Result<Answer, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(place).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut stream = rustls::StreamOwned::new(client, stream);
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    Ok(read(stream, |_| false))
}

#[test]
fn beyond_this_host_there_are_tls_and_tokens() {
    const TEST: &str = "beyond_this_host_there_are_tls_and_tokens";
    let lab = Lab::new();
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob { steps: 60, ..EndedJob::small() }.write(&dir);
    let (ours, theirs) = (certificates(&lab, "ours"), certificates(&lab, "theirs"));
    let tokens = lab.path("tokens.json").display().to_string();
    let token = |name: &str, ttl: &str| {
        let of = [
            "identity", "token", "--role", "reader", "--for", "serve", "--tokens", &tokens, "--name", name, "--ttl",
            ttl,
        ];
        let made = run(&of);
        assert!(made.status.success(), "{}", stderr(&made));
        stdout(&made).trim().to_owned()
    };
    let (short, good) = (token("short", "1s"), token("olga", "1h"));
    let expired = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (db, text) = (dir.display().to_string(), |path: &Path| path.display().to_string());
    let (cert, key, other_key) = (text(&ours.cert), text(&ours.key), text(&theirs.key));
    let flags = ["serve", "--db", &db, "--listen", "0.0.0.0:0", "--postgres", "0.0.0.0:0", "--host", "localhost"];
    // A key of another certificate is no key; none of the three may be left out.
    for (more, expected) in [
        (&["--tls-cert", &cert, "--tls-key", &other_key, "--tokens", &tokens][..], "using "),
        (&["--tls-cert", &cert, "--tls-key", &key], "only with TLS and tokens"),
        (&["--tokens", &tokens], "only with TLS and tokens"),
        (&["--tls-cert", &cert, "--tokens", &tokens], "--tls-key"),
        (&["--tls-cert", "/nowhere", "--tls-key", &key, "--tokens", &tokens], "/nowhere"),
    ] {
        let refused = run(&[&flags[..], more].concat());
        assert!(!refused.status.success() && stderr(&refused).contains(expected), "{more:?}: {}", stderr(&refused));
    }
    let mut command = rankmesh();
    command.args(flags).args(["--tls-cert", &cert, "--tls-key", &key, "--tokens", &tokens]);
    let mut served = Served::start(command);
    let place = served.place().replace("0.0.0.0", "127.0.0.1");
    let host = format!("localhost:{}", place.rsplit_once(':').expect("a port").1);
    let ask = |token: &str, host: &str, more: &[(&str, &str)], sql: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [&[("authorization", bearer.as_str())][..], more].concat();
        tls(&place, &ours.roots, &request("POST", "/api/v1/query", host, &headers, sql)).expect("TLS")
    };
    assert_eq!(ask(&good, &host, &[], "SELECT count(*) FROM collectives").json()["rows"], json!([[480]]));
    assert_eq!(ask(&good, &host, &[], "SELECT comm FROM processes").status, 403, "a reader reads what readers may");
    // Who trusts another CA speaks to nobody; without TLS nothing is answered.
    let wrong = tls(&place, &theirs.roots, &request("GET", "/healthz", &host, &[], "")).expect_err("another CA");
    assert!(wrong.contains("UnknownIssuer"), "{wrong}");
    let mut plain = TcpStream::connect(&place).expect("it listens");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time");
    plain.write_all(request("GET", "/healthz", &host, &[], "").as_bytes()).expect("sent");
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // The page, from its own origin and under its own name only.
    let page = tls(&place, &ours.roots, &request("GET", "/", &host, &[], "")).expect("TLS");
    assert!(page.status == 200 && page.text().contains("<html"), "{}", page.status);
    let elsewhere = |host: &str, more: &[(&str, &str)]| ask(&good, host, more, "SELECT 1").status;
    let own = format!("https://{host}");
    assert_eq!(elsewhere(&host, &[("origin", &own)]), 200);
    assert_eq!(elsewhere(&host, &[("origin", &format!("http://{host}"))]), 403, "another scheme is another origin");
    assert_eq!(elsewhere(&host, &[("origin", "https://evil.example")]), 403);
    assert_eq!(elsewhere("evil.example", &[]), 421);
    assert_eq!(elsewhere(&format!("127.0.0.2:{}", &host[10..]), &[]), 421, "only names that were given");
    assert_eq!(ask(&good, &host, &[], &"x".repeat(700 << 10)).status, 413);
    assert_eq!(ask("rankmesh_wrong", &host, &[], "SELECT 1").status, 401);
    std::thread::sleep(expired.saturating_duration_since(std::time::Instant::now()));
    assert_eq!(ask(&short, &host, &[], "SELECT 1").status, 401, "it has ended");
    assert!(!served.output().contains("#k="), "nobody signs in by a link: {}", served.output());

    // PostgreSQL's protocol likewise: the user is the token's name.
    if has("psql", TEST) {
        let line = served.line("PostgreSQL's protocol on ");
        let port = line.split_once(',').expect("more").0.rsplit_once(':').expect("a port").1.to_owned();
        let psql = |user: &str, password: &str, more: &str| {
            let place = format!("host=localhost hostaddr=127.0.0.1 port={port} dbname=rankmesh user={user} {more}");
            let mut command = Command::new("psql");
            command.args(["-X", "-At", &place, "-c", "SELECT count(*) FROM collectives"]).env("PGPASSWORD", password);
            command.stdin(Stdio::null()).output().expect("psql runs")
        };
        let trusted = format!("sslmode=verify-full sslrootcert={}", ours.ca.display());
        let asked = psql("olga", &good, &trusted);
        assert_eq!(stdout(&asked), "480\n", "{}", stderr(&asked));
        for (user, password, more, expected) in [
            ("olga", "rankmesh_wrong", trusted.as_str(), "authentication failed"),
            ("short", &short, &trusted, "authentication failed"),
            ("rankmesh", &good, &trusted, "authentication failed"),
            (
                "olga",
                &good,
                &format!("sslmode=verify-full sslrootcert={}", theirs.ca.display()),
                "certificate verify failed",
            ),
            ("olga", &good, "sslmode=disable", "TLS"),
        ] {
            let refused = psql(user, password, more);
            assert!(
                !refused.status.success() && stderr(&refused).contains(expected),
                "{user} {more}: {}",
                stderr(&refused)
            );
        }
    }

    // More than a client may ask in a while: it gets the time to come again. (Last, as its bucket
    // is empty then.)
    let statuses: Vec<u16> = (0..400)
        .map(|_| {
            tls(
                &place,
                &ours.roots,
                &request("GET", "/healthz", &host, &[("authorization", &format!("Bearer {good}"))], ""),
            )
        })
        .map(|answer| answer.expect("TLS").status)
        .take_while(|status| *status == 200)
        .collect();
    assert!(statuses.len() < 400, "the rate of requests is bounded");
}
