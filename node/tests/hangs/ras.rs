//! What answers in the place of NCCL's RAS, which the stand-in for NCCL does not have.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// How a report says what it answers.
pub(crate) const SAID: &str = "NCCL 2.29.1 itself (RAS) says";

const STATUS: &str = r#"{"nccl_version": "2.29.1", "communicators": []}"#;

/// Answers until the test ends.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || listener.incoming().flatten().for_each(|client| drop(answer(client))));
    address
}

/// One client, by the published protocol.
fn answer(mut client: TcpStream) -> std::io::Result<()> {
    for line in BufReader::new(client.try_clone()?).lines() {
        match line?.as_str() {
            "CLIENT PROTOCOL 2" => client.write_all(b"SERVER PROTOCOL 2\n")?,
            "VERBOSE STATUS" => return client.write_all(STATUS.as_bytes()),
            _ => client.write_all(b"OK\n")?,
        }
    }
    Ok(())
}
