//! Asking an agent from a machine that has none: one connection with a certificate of role operator
//! or reader (or a node's), one question, its answer. Such a client is no member: it does not
//! gossip, and nobody calls it. The agent (`agent::serve`) decides for every request what may be
//! asked.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use model::frame::{self, FrameReader};
use model::wire::{Request, Response};
use model::{LocalRequest, LocalResponse};
use quinn::{Endpoint, VarInt};

use super::error::AskError;
use super::{code, endpoint, pool, probe};

/// How long the handshake, and then sending the question, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to an agent.
pub struct Via {
    endpoint: Endpoint,
    connection: quinn::Connection,
}

/// The answer to a question as it arrives.
pub struct Answer {
    via: Via,
    reader: FrameReader<quinn::RecvStream>,
}

impl Via {
    /// Connects to the agent at `address`, with the certificate of `identity`. Must be called
    /// inside a tokio runtime.
    /// a tokio runtime.
    ///
    /// # Errors
    /// [`AskError::Unreachable`]; [`AskError::Refused`] when either end does not accept the other's
    /// certificate.
    pub async fn connect(identity: &certs::Identity, address: SocketAddr) -> Result<Self, AskError> {
        let unreachable = |error: String| AskError::Unreachable(error);
        let any: SocketAddr =
            if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let endpoint = Endpoint::client(any).map_err(|error| unreachable(error.to_string()))?;
        let config = endpoint::client_config(identity).map_err(|error| AskError::Refused(error.to_string()))?;
        let connecting = endpoint
            .connect_with(config, address, certs::tls::SERVER_NAME)
            .map_err(|error| unreachable(error.to_string()))?;
        let connection = tokio::select! {
            connected = connecting => connected.map_err(|error| AskError::of_connection(&error))?,
            objection = probe::objection(address) => return Err(objection.into()),
            () = tokio::time::sleep(PATIENCE) => return Err(unreachable("connection timed out".into())),
        };
        pool::judge(&connection, identity).map_err(|error| AskError::Refused(error.to_string()))?;
        endpoint::Window::Asked(1).open(&connection);
        Ok(Self { endpoint, connection })
    }

    async fn send(&self, request: &Request) -> Result<FrameReader<quinn::RecvStream>, AskError> {
        let bytes = frame::encode(request).map_err(|error| AskError::Protocol(error.to_string()))?;
        let asked = async {
            let opened = self.connection.open_bi().await;
            let (mut send, receive) = opened.map_err(|error| AskError::of_connection(&error))?;
            // Refused, it is the connection that says why.
            if send.write_all(&bytes).await.is_err() || send.finish().is_err() {
                return Err(AskError::of_connection(&self.connection.closed().await));
            }
            Ok(receive)
        };
        let sent = tokio::time::timeout(PATIENCE, asked).await;
        let late = AskError::Unreachable("the agent does not take the question".into());
        Ok(FrameReader::new(sent.map_err(|_| late)??))
    }

    /// Puts a question.
    ///
    /// # Errors
    /// It could not be put.
    pub async fn ask(self, request: LocalRequest) -> Result<Answer, AskError> {
        let reader = self.send(&Request::Ask(request)).await?;
        Ok(Answer { via: self, reader })
    }

    /// Puts a request that has one response.
    ///
    /// # Errors
    /// The connection broke off, or the agent does not answer.
    pub async fn request(&self, request: Request) -> Result<Response, AskError> {
        let mut reader = self.send(&request).await?;
        tokio::time::timeout(PATIENCE, self.read(&mut reader))
            .await
            .map_err(|_| AskError::Unreachable("the agent does not answer".into()))?
    }

    async fn read(&self, reader: &mut FrameReader<quinn::RecvStream>) -> Result<Response, AskError> {
        match reader.read::<Response>().await {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(AskError::Protocol("the answer broke off".into())),
            Err(error) => Err(match self.connection.close_reason() {
                Some(reason) => AskError::of_connection(&reason),
                None => AskError::Protocol(error.to_string()),
            }),
        }
    }

    /// Says farewell.
    pub async fn close(self) {
        self.connection.close(VarInt::from_u32(code::SHUTDOWN), b"");
        let _ = tokio::time::timeout(super::CLOSE_PATIENCE, self.endpoint.wait_idle()).await;
    }
}

impl Answer {
    /// The next piece; the last one says so ([`LocalResponse::is_last`]).
    ///
    /// # Errors
    /// The connection broke off, or the agent refuses the request ([`AskError::Refused`]).
    pub async fn next(&mut self) -> Result<LocalResponse, AskError> {
        match self.via.read(&mut self.reader).await? {
            Response::Local(response) => Ok(response),
            Response::Unsupported(why) => Err(AskError::Refused(why)),
            other => Err(AskError::Protocol(format!("an unexpected answer: {other:?}"))),
        }
    }

    /// Ends it; what is left may be used for more.
    #[must_use]
    pub fn end(self) -> Via {
        self.via
    }
}
