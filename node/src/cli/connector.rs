//! What commands ask besides the local agent: other agents over the mesh, stores and archives, and
//! the meshes of Slurm jobs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ask::{Backend, Connector, Exit, RanOnNode};

use super::stores::Stores;
use super::via::Via;
use crate::slurm::ask::{Reach, is_known, reach};

/// Opens them in this process.
pub(super) struct LocalConnector;

impl Connector for LocalConnector {
    fn via(&self, host: &str, identity: &Path) -> Arc<dyn Backend> {
        Arc::new(Via::new(host, identity))
    }

    fn stores(&self, paths: &[PathBuf]) -> anyhow::Result<Arc<dyn Backend>> {
        Ok(Arc::new(Stores::open(paths)?))
    }

    #[cfg(feature = "archive")]
    fn archive(
        &self,
        paths: &[PathBuf],
        archive: &str,
        live: Option<(Arc<dyn Backend>, Duration)>,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        use super::archive::again::{Again, LOOK_AGAIN};
        use super::archive::{asked, mesh_rows::Hosts};
        let (paths, archive) = (paths.to_vec(), archive.to_owned());
        let open = move || {
            let hosts = live.as_ref().map(|(mesh, timeout)| Hosts::ask(&ask::Target::of(Arc::clone(mesh)), *timeout));
            asked::open(&paths, &archive, hosts.transpose()?)
        };
        Ok(Arc::new(Again::open(LOOK_AGAIN, open)?))
    }

    #[cfg(not(feature = "archive"))]
    fn archive(
        &self,
        _: &[PathBuf],
        _: &str,
        _: Option<(Arc<dyn Backend>, Duration)>,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        Err(super::without_archives())
    }

    fn slurm_job(&self, job: &str) -> anyhow::Result<PathBuf> {
        let exit = match reach(job)? {
            Reach::Socket(path) => return Ok(path),
            Reach::HandedOn(0) => Exit::Complete,
            Reach::HandedOn(2) => Exit::Usage,
            Reach::HandedOn(3) => Exit::Partial,
            Reach::HandedOn(_) => Exit::Failed,
        };
        Err(RanOnNode(exit).into())
    }

    fn has_own_mesh(&self, job: &str) -> bool {
        is_known(job)
    }
}
