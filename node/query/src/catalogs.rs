//! The catalogues of the mesh: which tables which node has.
//!
//! A node gossips the hash of its catalogue. The coordinator fetches each distinct catalogue once,
//! keeps it by hash, and plans against the union. In a mesh of like agents there is one catalogue
//! and nothing to fetch.
//!
//! What arrives is verified when its hash is the one that was gossiped and SQLite can make tables
//! of it. A node whose catalogue is not known, or not verified, is not asked: it is missing, with
//! the reason ([`Excluded`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use gossip::Member;
use mesh::Mesh;
use model::failure::shown;
use model::frame::FrameReader;
use model::wire::{Request, Response};
use parking_lot::Mutex;
use query_planner::{Catalog, Plan};

use crate::exec::Executor;
use crate::way::Way;

/// Catalogues kept. Meshes have one or two, and one more for each served file of another form.
const MAX_CATALOGS: usize = 64;
/// The largest catalogue that is read, encoded.
const MOST_BYTES: usize = 4 << 20;

/// A node that does not send its catalogue may use half of a question's time: the others can still
/// answer in the rest.
fn midpoint_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// Catalogues by hash, and the union last made.
#[derive(Debug, Default)]
pub struct Catalogs {
    by_hash: Mutex<BTreeMap<u64, Arc<Catalog>>>,
    last_union: Mutex<Option<Union>>,
}

/// What questions are planned against.
#[derive(Debug, Clone)]
pub struct MeshCatalog {
    /// The union.
    pub catalog: Arc<Catalog>,
    /// Nodes that must not be asked for all that is in it.
    pub excluded: Arc<[Excluded]>,
}

/// A node whose rows do not fit the union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excluded {
    /// The node.
    pub node: String,
    /// The table that it has in another form; none where its tables are not known.
    pub table: Option<String>,
    /// Why, for coverage.
    pub why: String,
}

impl MeshCatalog {
    /// The nodes that cannot be asked for what a plan reads, and why.
    #[must_use]
    pub fn excluded_from(&self, plan: &Plan) -> BTreeMap<String, String> {
        let lazily = plan.lazily.iter().flat_map(|plan| &plan.fragments);
        let read: BTreeSet<String> = plan
            .fragments
            .iter()
            .chain(lazily)
            .flat_map(|fragment| &fragment.reads)
            .map(|(table, _)| table.to_ascii_lowercase())
            .collect();
        let concerns = |excluded: &&Excluded| {
            excluded.table.as_ref().is_none_or(|table| read.contains(&table.to_ascii_lowercase()))
        };
        self.excluded.iter().filter(concerns).map(|left| (left.node.clone(), left.why.clone())).collect()
    }
}

#[derive(Debug)]
struct Union {
    /// (node, hash) of every member in it.
    of: Vec<(String, u64)>,
    made: MeshCatalog,
}

impl Union {
    fn is_of(&self, members: &[&Member]) -> bool {
        self.of.len() == members.len()
            && self
                .of
                .iter()
                .zip(members)
                .all(|((name, hash), member)| *name == member.name && *hash == member.facts.schema_hash)
    }
}

/// The catalogues of some members.
#[derive(Default)]
struct Found {
    by_hash: BTreeMap<u64, Arc<Catalog>>,
    /// Members that gave none, or none that is verified, and why.
    failed: BTreeMap<String, Fault>,
}

/// Why a member's catalogue is not known.
#[derive(Debug, Clone)]
enum Fault {
    /// It did not come: another member with the same one may give it.
    NotFetched(String),
    /// What came is not what it gossips.
    Rejected(String),
}

impl Fault {
    fn why(&self) -> &str {
        match self {
            Self::NotFetched(why) | Self::Rejected(why) => why,
        }
    }
}

impl Catalogs {
    /// The union of the members' catalogues, and who is not in it. Where nodes disagree about a
    /// table, it is the one of the more nodes, else of this node.
    ///
    /// # Errors
    /// This node's own tables cannot be read, and nobody else's are known.
    pub async fn of_members(&self, way: &Way, members: &[&Member], deadline: Instant) -> Result<MeshCatalog, String> {
        let live: Vec<&Member> = members.iter().copied().filter(|member| member.may_live()).collect();
        if let Some(union) = self.last_union.lock().as_ref()
            && union.is_of(&live)
        {
            return Ok(union.made.clone());
        }
        let found = match way {
            Way::Mesh { mesh, own } => self.find(mesh, own, &live, midpoint_to(deadline)).await,
            Way::Files(_) => Found::default(),
        };
        let mut known: Vec<(&Member, Arc<Catalog>)> = Vec::with_capacity(live.len());
        let mut excluded = Vec::new();
        for &member in &live {
            let fault = found.failed.get(&member.name);
            // What is gossiped may be a moment old; what a node of this process has is known.
            let here = member.name.parse().ok().and_then(|name| way.executor_of(&name));
            let catalog = match here {
                Some(executor) => executor.catalog().ok(),
                None => found.by_hash.get(&member.facts.schema_hash).cloned(),
            };
            match (catalog, fault) {
                (Some(catalog), None | Some(Fault::NotFetched(_))) => known.push((member, catalog)),
                (_, fault) => excluded.push(Excluded {
                    node: member.name.clone(),
                    table: None,
                    why: match way.unreadable(&member.name) {
                        Some(why) => format!("failed: {why}"),
                        None => fault.map_or("failed: its tables are not known", Fault::why).to_owned(),
                    },
                }),
            }
        }
        let all_known = excluded.is_empty();
        let mut like: BTreeMap<u64, usize> = BTreeMap::new();
        known.iter().for_each(|(member, _)| *like.entry(member.facts.schema_hash).or_default() += 1);
        known.sort_by_key(|(member, _)| {
            let count = like.get(&member.facts.schema_hash).copied().unwrap_or(0);
            (std::cmp::Reverse(count), !member.is_self, member.name.clone())
        });
        let mut of_nodes: Vec<(String, Catalog)> =
            known.iter().map(|(member, catalog)| (member.name.clone(), (**catalog).clone())).collect();
        if let (true, Way::Mesh { mesh, own }) = (of_nodes.is_empty(), way) {
            let catalog = own.catalog().map_err(|error| error.to_string())?;
            of_nodes.push((mesh.identity().node().to_string(), (*catalog).clone()));
        }
        let (catalog, conflicts) = Catalog::union_of_most(&of_nodes);
        excluded.extend(conflicts.into_iter().map(|conflict| Excluded {
            why: format!("failed: {}", shown(&conflict.to_string())),
            table: Some(conflict.table),
            node: conflict.b,
        }));
        let made = MeshCatalog { catalog: Arc::new(catalog), excluded: excluded.into() };
        if all_known {
            let of = live.iter().map(|member| (member.name.clone(), member.facts.schema_hash)).collect();
            *self.last_union.lock() = Some(Union { of, made: made.clone() });
        }
        Ok(made)
    }

    /// The catalogue of each hash: different ones are fetched at the same time, one from its
    /// members, one after the other, until one of them has it.
    async fn find(&self, mesh: &Mesh, executor: &Executor, members: &[&Member], deadline: Instant) -> Found {
        let mut groups: BTreeMap<u64, Vec<&Member>> = BTreeMap::new();
        for member in members.iter().filter(|member| !member.is_self) {
            groups.entry(member.facts.schema_hash).or_default().push(member);
        }
        for members in groups.values_mut() {
            // Who may not be there is asked last.
            members.sort_by_key(|member| !member.is_live());
        }
        let in_use: BTreeSet<u64> = groups.keys().copied().collect();
        let own = executor.catalog().ok().map(|own| (own.hash(), own));
        let fetched = groups.into_iter().map(|(hash, members)| {
            let (own, in_use) = (own.as_ref(), &in_use);
            async move {
                let mut failed = Vec::new();
                if let Some(known) = self.known(hash, own) {
                    return (hash, Some(known), failed);
                }
                for member in members {
                    match fetch(mesh, member, deadline).await {
                        Ok(catalog) => {
                            self.keep(hash, &catalog, in_use);
                            return (hash, Some(catalog), failed);
                        }
                        Err(fault) => failed.push((member.name.clone(), fault)),
                    }
                    if Instant::now() >= deadline {
                        break;
                    }
                }
                (hash, None, failed)
            }
        });
        let mut found = Found::default();
        for (hash, catalog, failed) in futures::future::join_all(fetched).await {
            found.by_hash.extend(catalog.map(|catalog| (hash, catalog)));
            found.failed.extend(failed);
        }
        found
    }

    fn known(&self, hash: u64, own: Option<&(u64, Arc<Catalog>)>) -> Option<Arc<Catalog>> {
        let own = own.filter(|(of, _)| *of == hash).map(|(_, catalog)| Arc::clone(catalog));
        own.or_else(|| self.by_hash.lock().get(&hash).cloned())
    }

    /// Keeps a catalogue. Where too many are kept, those that no member has any more go, then
    /// whichever.
    fn keep(&self, hash: u64, catalog: &Arc<Catalog>, in_use: &BTreeSet<u64>) {
        let mut kept = self.by_hash.lock();
        if kept.len() >= MAX_CATALOGS {
            kept.retain(|hash, _| in_use.contains(hash));
        }
        while kept.len() >= MAX_CATALOGS {
            kept.pop_first();
        }
        kept.insert(hash, Arc::clone(catalog));
    }
}

/// Asks a member for its catalogue.
async fn fetch(mesh: &Mesh, member: &Member, deadline: Instant) -> Result<Arc<Catalog>, Fault> {
    let not_reached = |why: &str| Fault::NotFetched(shown(why));
    let name = member.name.parse().map_err(|_| not_reached("failed: it has no node's name"))?;
    let asked = mesh.ask(&name, member.address, Request::Catalog, deadline.into()).await;
    let mut answer = asked.map_err(|error| not_reached(&error.to_string()))?;
    match answer.next().await.map_err(|error| not_reached(&error.to_string()))? {
        Some(Response::Catalog(bytes)) => verified(&bytes, member.facts.schema_hash).await.map_err(|why| {
            tracing::warn!(node = %member.name, %why, "a catalogue is not verified");
            Fault::Rejected(shown(&format!("failed: {why}")))
        }),
        Some(other) => Err(not_reached(&format!("failed: its tables did not arrive: {}", other.summary()))),
        None => Err(not_reached("failed: its tables did not arrive")),
    }
}

/// The catalogue that these bytes are, if it is the one with this hash and can be used.
///
/// # Errors
/// What is wrong with it.
pub async fn verified(bytes: &[u8], hash: u64) -> Result<Arc<Catalog>, String> {
    if bytes.len() > MOST_BYTES {
        return Err(format!("its catalogue has {} bytes, {MOST_BYTES} are allowed", bytes.len()));
    }
    let catalog = match FrameReader::new(bytes).read::<Catalog>().await {
        Ok(Some(catalog)) => catalog,
        Ok(None) => return Err("its catalogue is empty".to_owned()),
        Err(error) => return Err(format!("its catalogue cannot be read: {error}")),
    };
    let found = catalog.hash();
    if found != hash {
        return Err(format!(
            "the catalogue that it gave ({found:016x}) is not the one that it announces ({hash:016x}); if its tables have just \
             changed, ask again"
        ));
    }
    catalog.check().map_err(|why| format!("its catalogue cannot be used: {why}"))?;
    Ok(Arc::new(catalog))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::frame;

    fn catalog(sql: &str) -> Catalog {
        let connection = rusqlite::Connection::open_in_memory().expect("memory");
        connection.execute_batch(sql).expect("valid SQL");
        Catalog::of(&connection, &[]).expect("a catalogue")
    }

    #[tokio::test]
    async fn a_catalogue_is_believed_for_its_hash_and_where_tables_can_be_made_of_it() {
        let sound = catalog("CREATE TABLE t(x INTEGER, y TEXT COLLATE NOCASE); CREATE VIEW v AS SELECT x FROM t");
        let bytes = frame::encode(&sound).expect("short");
        assert_eq!(*verified(&bytes, sound.hash()).await.expect("it is the one"), sound);
        let why = verified(&bytes, sound.hash() ^ 1).await.expect_err("another hash");
        assert!(why.contains("is not the one that it announces"), "{why}");
        assert!(verified(&bytes[..bytes.len() - 1], sound.hash()).await.is_err());
        assert!(verified(&[], sound.hash()).await.is_err());
        assert!(verified(&vec![0; MOST_BYTES + 1], sound.hash()).await.is_err());

        type Change = fn(&mut Catalog);
        let spoiled: [(&str, Change); 5] = [
            ("goes by the name", |catalog| {
                let table = catalog.tables.remove("t").expect("it is there");
                catalog.tables.insert("u".to_owned(), table);
            }),
            ("cannot be made", |catalog| {
                let table = catalog.tables.get_mut("t").expect("it is there");
                let again = table.columns[0].clone();
                table.columns.push(again);
            }),
            ("has no columns", |catalog| catalog.tables.get_mut("t").expect("it is there").columns.clear()),
            ("collates by", |catalog| {
                catalog.tables.get_mut("t").expect("it is there").columns[0].collation = "x); DROP".to_owned();
            }),
            ("more than can be asked for", |catalog| {
                let table = catalog.tables["t"].clone();
                catalog.tables.extend((0..10_001).map(|i| {
                    let table = query_planner::Table { name: format!("t{i}"), ..table.clone() };
                    (table.name.clone(), table)
                }));
            }),
        ];
        for (what, spoil) in spoiled {
            let mut catalog = sound.clone();
            spoil(&mut catalog);
            let bytes = frame::encode(&catalog).expect("short");
            let why = verified(&bytes, catalog.hash()).await.expect_err(what);
            assert!(why.contains(what), "{why}");
        }
    }

    #[test]
    fn no_more_catalogues_are_kept_than_fit_and_those_in_use_longest() {
        let catalogs = Catalogs::default();
        let catalog = Arc::new(catalog("CREATE TABLE t(x)"));
        let in_use = BTreeSet::from([3, 5]);
        for hash in 0..10 * MAX_CATALOGS as u64 {
            catalogs.keep(hash, &catalog, &in_use);
            assert!(catalogs.by_hash.lock().len() <= MAX_CATALOGS);
        }
        assert!([3, 5].iter().all(|hash| catalogs.known(*hash, None).is_some()));
        assert!(catalogs.known(7, None).is_none());
        assert!(catalogs.known(7, Some(&(7, Arc::clone(&catalog)))).is_some(), "this node's own");
    }
}
