//! The same protocol over HTTP, for `rankmesh serve`, which checks hosts, origins and tokens before
//! a request comes here.

use std::sync::Arc;

use ask::Target;
use ask::args::{AskArgs, SocketArg, TargetArgs};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::server::Server;

/// Tokens of one answer.
const MAX_TOKENS: u32 = 8_000;

/// A service for one path. A request's extensions may contain the [`model::OnBehalf`] of its
/// client.
pub fn service(target: Target, timeout: std::time::Duration) -> StreamableHttpService<Server, NeverSessionManager> {
    let socket = SocketArg { socket: None, via: None, identity: None };
    let ask = AskArgs { timeout, nodes: Vec::new(), label: Vec::new(), require_all: false };
    let server =
        Server::new(target, TargetArgs { socket, db: Vec::new(), archive: None, live: false, ask }, None, MAX_TOKENS);
    // No session is kept: each request is independent. Who may send one was checked before.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts();
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config)
}
