//! Names of meshes and nodes, and the URI that binds both into a certificate. Who may bear a name
//! is decided in `issued`; how the URI is found in a certificate is in `chain`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The URI scheme of the name inside certificates.
const SCHEME: &str = "rankmesh://";
/// The longest name, in bytes: what Linux has as a host's name. Names go into every gossip message and into file names.
const MAX_NAME_BYTES: usize = 64;

/// A text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a {what} name: {reason}")]
pub struct NameError {
    /// `mesh` or `node`.
    what: &'static str,
    /// The text given.
    name: String,
    /// The rule it breaks.
    reason: &'static str,
}

/// Returns what is wrong with `text` as a name, if anything is.
fn check(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err("a name has 1 to 64 characters");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err("a name is made of letters, digits, '.', '_' and '-'");
    }
    // So that a name is never an option on a command line, a hidden file or a step out of a
    // directory.
    if text.starts_with(['.', '-']) {
        return Err("a name starts with a letter, a digit or '_'");
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                match check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(reason) => Err(NameError { what: $what, name: text, reason }),
                }
            }
        }

        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// The name of a mesh: 1 to 64 of `[A-Za-z0-9._-]`, not starting with `.` or `-`. Case matters.
    MeshName,
    "mesh"
);
name!(
    /// The name of a node within its mesh: 1 to 64 of `[A-Za-z0-9._-]`, not starting with `.` or
    /// `-`. Case matters.
    NodeName,
    "node"
);

/// What the bearer of a certificate may do. Who enforces it is the agent, request by request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A member: an agent that gossips, asks and answers.
    Node,
    /// A person or program that asks questions and administers the mesh; never a member.
    Operator,
    /// A person or program that asks questions; never a member.
    Reader,
}

impl Role {
    /// The role in lower case, as in the URI.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Operator => "operator",
            Self::Reader => "reader",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "node" => Ok(Self::Node),
            "operator" => Ok(Self::Operator),
            "reader" => Ok(Self::Reader),
            _ => Err("a role is node, operator or reader"),
        }
    }
}

/// The URI of a node: `rankmesh://MESH/NODE`; of other roles: `rankmesh://MESH/ROLE/NAME`. (An
/// agent from before there were roles cannot read the second form, and refuses it.)
pub(crate) fn node_uri(mesh: &MeshName, node: &NodeName, role: Role) -> String {
    match role {
        Role::Node => format!("{SCHEME}{mesh}/{node}"),
        Role::Operator | Role::Reader => format!("{SCHEME}{mesh}/{role}/{node}"),
    }
}

/// The URI of a mesh, borne by its CA: `rankmesh://MESH`.
pub(crate) fn mesh_uri(mesh: &MeshName) -> String {
    format!("{SCHEME}{mesh}")
}

/// Reads a URI written by [`node_uri`].
pub(crate) fn parse_node_uri(uri: &str) -> Option<(MeshName, NodeName, Role)> {
    let (mesh, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let (role, node) = match path.split_once('/') {
        None => (Role::Node, path),
        // A node has one form only.
        Some((role, node)) => (role.parse().ok().filter(|role| *role != Role::Node)?, node),
    };
    Some((mesh.parse().ok()?, node.parse().ok()?, role))
}

/// Reads a URI written by [`mesh_uri`].
pub(crate) fn parse_mesh_uri(uri: &str) -> Option<MeshName> {
    uri.strip_prefix(SCHEME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_what_is_no_name() {
        let too_long = "x".repeat(65);
        for bad in ["", "a b", "a/b", "ä", "-a", ".", "..", "a\n", "a\0", too_long.as_str()] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
            assert!(bad.parse::<MeshName>().is_err(), "{bad:?}");
        }
        for good in ["a", "_x", "gpu-01.rack_3.example.org", &"x".repeat(64)] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn serde_checks_too() {
        assert!(serde_json::from_str::<NodeName>("\"a/b\"").is_err());
        let name: NodeName = serde_json::from_str("\"a\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"a\"");
    }

    #[test]
    fn uris_are_exact() {
        for bad in [
            "rankmesh://m",
            "rankmesh://m/",
            "rankmesh:///n",
            "rankmesh://m/n/o",
            "rankmesh://m/node/n",
            "rankmesh://m/Reader/n",
            "rankmesh://m/reader/",
            "rankmesh://m/reader/n/o",
            "spiffe://m/n",
            "m/n",
            "rankmesh://m/n?x",
        ] {
            assert!(parse_node_uri(bad).is_none(), "{bad}");
        }
        assert!(parse_mesh_uri("rankmesh://m/n").is_none());
    }

    proptest! {
        #[test]
        fn uris_round_trip(mesh in "[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", node in "[A-Za-z0-9_][A-Za-z0-9._-]{0,62}") {
            let (mesh, node): (MeshName, NodeName) = (mesh.parse().unwrap(), node.parse().unwrap());
            for role in [Role::Node, Role::Operator, Role::Reader] {
                prop_assert_eq!(parse_node_uri(&node_uri(&mesh, &node, role)), Some((mesh.clone(), node.clone(), role)));
                prop_assert_eq!(role.as_str().parse::<Role>(), Ok(role));
            }
            prop_assert_eq!(parse_mesh_uri(&mesh_uri(&mesh)), Some(mesh));
        }

        #[test]
        fn any_text_parses_or_errs(text in any::<String>()) {
            let parsed = text.parse::<NodeName>();
            prop_assert!(parsed.is_err() || parsed.unwrap().as_str() == text);
            let _ = parse_node_uri(&text);
        }
    }
}
