//! The catalogues of the mesh: which tables which node has.
//!
//! A node gossips the hash of its catalogue. The asker fetches each distinct catalogue once, keeps it by hash, and
//! plans against the union. In a mesh of like agents there is one catalogue and nothing to fetch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gossip::Member;
use mesh::Mesh;
use model::frame::FrameReader;
use model::wire::{Request, Response};
use query_planner::Catalog;

use crate::exec::Executor;
use crate::lock::lock;

/// A node that keeps its catalogue to itself may take half of a question's time: the others can still answer in the rest.
fn half_way_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// Catalogues by hash, and the union last made.
#[derive(Debug, Default)]
pub struct Catalogs {
    by_hash: Mutex<BTreeMap<u64, Arc<Catalog>>>,
    last_union: Mutex<Option<Union>>,
}

#[derive(Debug)]
struct Union {
    /// (node, hash) of every member in it.
    of: Vec<(String, u64)>,
    catalog: Arc<Catalog>,
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

impl Catalogs {
    /// The union of the members' catalogues. A member whose catalogue cannot be fetched now is left out: it will be
    /// missing from the answer as well, and coverage says so.
    ///
    /// # Errors
    /// Two nodes disagree about a table in a way that has no union; the text names them.
    pub async fn of_mesh(
        &self,
        mesh: &Mesh,
        executor: &Executor,
        members: &[&Member],
        deadline: Instant,
    ) -> Result<Arc<Catalog>, String> {
        let live: Vec<&Member> = members.iter().copied().filter(|member| member.may_live()).collect();
        if let Some(union) = lock(&self.last_union).as_ref()
            && union.is_of(&live)
        {
            return Ok(Arc::clone(&union.catalog));
        }
        let of: Vec<(String, u64)> =
            live.iter().map(|member| (member.name.clone(), member.facts.schema_hash)).collect();
        let mut known = Vec::with_capacity(live.len());
        let found = self.by_hash(mesh, executor, &live, half_way_to(deadline)).await;
        for member in live {
            if let Some(catalog) = found.get(&member.facts.schema_hash) {
                known.push((member.name.clone(), (**catalog).clone()));
            }
        }
        if known.is_empty() {
            known.push((
                mesh.identity().node().to_string(),
                (*executor.catalog().map_err(|error| error.to_string())?).clone(),
            ));
        }
        let whole = known.len() == of.len();
        let catalog = Arc::new(
            Catalog::union(&known)
                .map_err(|conflicts| conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?,
        );
        if whole {
            *lock(&self.last_union) = Some(Union { of, catalog: Arc::clone(&catalog) });
        }
        Ok(catalog)
    }

    /// The catalogue of each hash: different ones are fetched at the same time, one from its members in turn until one of
    /// them has it.
    async fn by_hash(
        &self,
        mesh: &Mesh,
        executor: &Executor,
        members: &[&Member],
        deadline: Instant,
    ) -> BTreeMap<u64, Arc<Catalog>> {
        let mut groups: BTreeMap<u64, Vec<&Member>> = BTreeMap::new();
        for member in members {
            groups.entry(member.facts.schema_hash).or_default().push(member);
        }
        for members in groups.values_mut() {
            // Who may not be there is asked last.
            members.sort_by_key(|member| !member.is_live());
        }
        let fetched = groups.into_iter().map(|(hash, members)| async move {
            for member in members {
                if let Some(catalog) = self.of_member(mesh, executor, member, deadline).await {
                    return Some((hash, catalog));
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
            None
        });
        futures::future::join_all(fetched).await.into_iter().flatten().collect()
    }

    async fn of_member(
        &self,
        mesh: &Mesh,
        executor: &Executor,
        member: &Member,
        deadline: Instant,
    ) -> Option<Arc<Catalog>> {
        let hash = member.facts.schema_hash;
        if let Some(catalog) = lock(&self.by_hash).get(&hash) {
            return Some(Arc::clone(catalog));
        }
        let catalog = if member.is_self {
            executor.catalog().map_err(|error| tracing::warn!("reading this node's catalogue: {error}")).ok()?
        } else {
            let name = member.name.parse().ok()?;
            let mut answer = mesh.ask(&name, member.address, Request::Catalog, deadline.into()).await.ok()?;
            match answer.next().await {
                Ok(Some(Response::Catalog(bytes))) => match FrameReader::new(&bytes[..]).read::<Catalog>().await {
                    Ok(Some(catalog)) => Arc::new(catalog),
                    error => {
                        tracing::warn!("the catalogue of {} is unreadable: {error:?}", member.name);
                        return None;
                    }
                },
                other => {
                    tracing::warn!("the catalogue of {} did not arrive: {other:?}", member.name);
                    return None;
                }
            }
        };
        lock(&self.by_hash).insert(hash, Arc::clone(&catalog));
        Some(catalog)
    }
}
