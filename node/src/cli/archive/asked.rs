//! An archive that is asked: its nodes, with the newer rows of stores or of a mesh's live hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use archive::history::NodeHistory;
use archive::holdings::Archive;
use archive::live::{Live, LiveStore};
use archive::place::{Place, Settings};
use ask::UsageError;
use certs::NodeName;
use store::{ServedDb, Source};

use super::mesh_rows::Hosts;
use crate::cli::stores::Stores;

/// The nodes of an archive, each with its store where that is among those that `paths` mean;
/// the other stores as nodes of their own. With a mesh the live hosts in the stores' place.
///
/// # Errors
/// The archive cannot be read, or holds nothing; as [`Stores::open`].
pub(in crate::cli) fn open(paths: &[PathBuf], archive: &str, mesh: Option<Hosts>) -> anyhow::Result<Stores> {
    let files = if paths.is_empty() { Vec::new() } else { query::files::expand(paths)? };
    let hours = Arc::new(Archive::open(Place::open(archive, &Settings::of_environment())?)?);
    let mut taken: BTreeSet<NodeName> = BTreeSet::new();
    let mut live: BTreeMap<String, Arc<dyn LiveStore>> = BTreeMap::new();
    let mut sources: Vec<(NodeName, Result<Source, String>)> = Vec::new();
    for node in hours.stores().keys().map(|store| store.node.as_str()).collect::<BTreeSet<_>>() {
        let name: NodeName = node.parse().map_err(|error| anyhow::anyhow!("{archive}: node {node}: {error}"))?;
        taken.insert(name);
    }
    for file in &files {
        let opened = Live::open(file);
        let known = opened.as_ref().ok().and_then(|live| {
            let birth_ns = live.birth_ns()?;
            hours.stores().keys().find(|store| store.birth_ns == birth_ns)
        });
        match (opened, known) {
            (Ok(opened), Some(store)) if !live.contains_key(&store.node) => {
                live.insert(store.node.clone(), Arc::new(opened));
            }
            (_, Some(store)) => {
                let file = file.display();
                return Err(UsageError(format!(
                    "{file} is another copy of the store of {}: its rows would count twice",
                    store.node
                ))
                .into());
            }
            (_, None) => {
                let served = ServedDb::open_recorded(file).map(Source::Served).map_err(|error| error.to_string());
                sources.push((query::files::name_of(file, &mut taken), served));
            }
        }
    }
    let mut nodes: BTreeSet<String> = hours.stores().keys().map(|store| store.node.clone()).collect();
    if let Some(mut hosts) = mesh {
        for host in std::mem::take(&mut hosts.all) {
            let of_host = hours.stores().iter().filter(|(store, _)| store.node == host.name);
            let archived_until_ns = of_host.map(|(_, hours)| hours.until_ns).max();
            match (&host.lost, archived_until_ns) {
                (Some(why), None) => sources.push((host.name.parse()?, Err(why.clone()))),
                _ => {
                    let (name, until_ns) = (host.name.clone(), archived_until_ns.unwrap_or(i64::MIN));
                    live.insert(name.clone(), Arc::new(hosts.store(host, until_ns)));
                    nodes.insert(name);
                }
            }
        }
    }
    for node in &nodes {
        let history = NodeHistory::new(Arc::clone(&hours), node, live.remove(node));
        sources.push((node.parse()?, Ok(Source::External(Box::new(history)))));
    }
    let paths = paths.iter().cloned().chain([PathBuf::from(archive)]).collect();
    Stores::over(paths, || query::files::coordinator_of(sources, verdicts::VIEWS))
}
