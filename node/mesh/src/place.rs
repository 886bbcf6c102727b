//! Where a node is reached, as people write it: `HOST`, `HOST:PORT`, an address of either kind, with
//! or without a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The UDP port of an agent that was not given another.
const DEFAULT_PORT: u16 = 7117;
/// The longest name of a host that DNS has.
const MAX_HOST_BYTES: usize = 253;

/// A host, by name or address, and the port of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Host {
    Address(IpAddr),
    Name(String),
}

/// A text that is no place; what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlaceError(String);

impl Place {
    /// Its addresses now; of a name those that the system's resolver has, any number.
    ///
    /// # Errors
    /// The name is not known, or no resolver answers; the error names it.
    pub async fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        match &self.host {
            Host::Address(ip) => Ok(vec![(*ip, self.port).into()]),
            Host::Name(name) => {
                let found = tokio::net::lookup_host((name.as_str(), self.port)).await;
                let found: Vec<SocketAddr> = found
                    .map_err(|error| {
                        std::io::Error::new(error.kind(), format!("the name {name} has no address: {error}"))
                    })?
                    .collect();
                Ok(found)
            }
        }
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip()), port: address.port() }
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let wrong = |why: &str| PlaceError(format!("'{text}' is no host: {why}"));
        if text.contains("//") || text.contains('/') {
            return Err(wrong("write HOST or HOST:PORT, without scheme or path"));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { host: Host::Address(ip), port: DEFAULT_PORT });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (ip, after) =
                rest.split_once(']').ok_or_else(|| wrong("an IPv6 address with a port is written [ADDRESS]:PORT"))?;
            let ip: Ipv6Addr = ip.parse().map_err(|_| wrong("in [ ] stands an IPv6 address"))?;
            let port = match after.strip_prefix(':') {
                Some(port) => parse_port(port).ok_or_else(|| wrong(PORT))?,
                None if after.is_empty() => DEFAULT_PORT,
                None => return Err(wrong("an IPv6 address with a port is written [ADDRESS]:PORT")),
            };
            return Ok(Self { host: Host::Address(ip.into()), port });
        }
        let (name, port) = match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err(wrong("an IPv6 address with a port is written [ADDRESS]:PORT"));
            }
            Some((name, port)) => (name, parse_port(port).ok_or_else(|| wrong(PORT))?),
            None => (text, DEFAULT_PORT),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        match name {
            "" => Err(wrong("write HOST or HOST:PORT")),
            _ if name.len() > MAX_HOST_BYTES => Err(wrong("names of hosts have 253 characters at most")),
            _ if !name.bytes().all(is_name) => {
                Err(wrong("names of hosts are made of letters, digits, '.', '_' and '-'"))
            }
            // (Resolvers read 10.0.0 and 300.1.1.1 in ways that nobody means.)
            _ if name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => match name.parse::<IpAddr>() {
                Ok(ip) => Ok(Self { host: Host::Address(ip), port }),
                Err(_) => Err(wrong("an IPv4 address has four numbers up to 255")),
            },
            _ => Ok(Self { host: Host::Name(name.to_owned()), port }),
        }
    }
}

const PORT: &str = "a port is a number from 1 to 65535";

fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_and_without_a_port() {
        let read = [
            ("gpu-1", "gpu-1:7117"),
            ("gpu-1.cluster.example:7200", "gpu-1.cluster.example:7200"),
            ("10.0.0.1", "10.0.0.1:7117"),
            ("10.0.0.1:7200", "10.0.0.1:7200"),
            ("::1", "[::1]:7117"),
            ("[::1]", "[::1]:7117"),
            ("[fd00::7]:7200", "[fd00::7]:7200"),
        ];
        for (text, shown) in read {
            let place: Place = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(place.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(place), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_says_what_to_write() {
        let refused = [
            ("", "write HOST"),
            (":7117", "write HOST"),
            ("gpu-1:", "a port is"),
            ("gpu-1:0", "a port is"),
            ("gpu-1:99999", "a port is"),
            ("https://gpu-1:7117", "without scheme"),
            ("fd00::7:port", "[ADDRESS]:PORT"),
            ("[fd00::7", "[ADDRESS]:PORT"),
            ("[gpu-1]:7117", "IPv6 address"),
            ("gpu 1", "made of letters"),
            ("10.0.0", "four numbers"),
            ("300.1.1.1:7117", "four numbers"),
        ];
        for (text, why) in refused {
            let error = text.parse::<Place>().expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!("x".repeat(254).parse::<Place>().is_err());
    }
}
