//! The Model Context Protocol: what agents' clients speak. Tools that search, ask, add and look, and documents as resources.
//!
//! The protocol itself is rmcp's. `ragstone mcp` serves it over its standard input and output (`crate::cli::mcp`), a running
//! service at `/mcp` (`crate::http::mcp`); both end here.

mod resources;
mod tools;

use std::sync::Arc;

use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::sync::Semaphore;

use self::tools::Call;
use crate::client::routes::Routes;
use crate::error::{Error, ErrorKind, Result};

/// Calls of one client that are worked on at once.
const MAX_CALLS: usize = 64;
/// How long clients may keep the list of tools, which changes with the version only, in milliseconds.
const TOOLS_FRESH_MS: u64 = 3_600_000;
const INSTRUCTIONS: &str = "ragstone keeps collections of documents and answers questions over them with a local language model. \
    `status` names the collections; `search` returns passages to read yourself; `ask` has the local model answer, with citations; \
    `add` stores a text so that later searches and questions find it. Documents are resources: ragstone://COLLECTION/DOCUMENT.";

/// One client's server.
#[derive(Clone)]
pub struct Server {
    routes: Arc<dyn Routes>,
    calls: Arc<Semaphore>,
}

impl Server {
    /// One whose tools send their requests to `routes`.
    pub fn new(routes: impl Routes) -> Self {
        Self { routes: Arc::new(routes), calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    async fn call(&self, call: Call, progress: Option<Progress>) -> Result<CallToolResult> {
        let _place = self.calls.try_acquire().map_err(|_| {
            let message = format!("{MAX_CALLS} calls are worked on already; wait for some of them, then call again");
            Error::new(ErrorKind::Overloaded, message)
        })?;
        tools::run(&*self.routes, call, progress).await
    }
}

/// Tells the client how far a call is.
pub struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
}

impl Progress {
    fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        Some(Self { peer: context.peer.clone(), token })
    }

    /// `done` of at most `total`, and the text that came with it. A client that takes no news is told nothing: the answer goes on.
    pub async fn tell(&self, done: u64, total: u64, message: &str) {
        let news = ProgressNotificationParam::new(self.token.clone(), done as f64);
        let news = news.with_total(total as f64).with_message(message);
        if let Err(error) = self.peer.notify_progress(news).await {
            tracing::debug!(%error, "progress did not reach the client");
        }
    }
}

/// Ends `work` when the client takes its request back.
async fn unless_cancelled<T>(
    context: &RequestContext<RoleServer>,
    work: impl Future<Output = Result<T, ErrorData>>,
) -> Result<T, ErrorData> {
    tokio::select! {
        done = work => done,
        () = context.ct.cancelled() => Err(ErrorData::invalid_request("the request was cancelled", None)),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let own = Implementation::new("ragstone", env!("CARGO_PKG_VERSION")).with_title("ragstone");
        ServerConfig::new(capabilities).with_server_info(own).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()).with_ttl_ms(TOOLS_FRESH_MS))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let progress = Progress::of(&context);
        let work = async {
            let arguments = request.arguments.unwrap_or_default();
            let done = match Call::read(&request.name, arguments) {
                None => {
                    let message =
                        format!("there is no tool `{}`; tools/list names those that are there", shown(&request.name));
                    return Err(ErrorData::invalid_params(message, None));
                }
                Some(Err(error)) => Err(error),
                Some(Ok(call)) => self.call(call, progress).await,
            };
            // What a model can mend reaches it only as a tool's result; clients keep protocol errors to themselves.
            Ok(done.unwrap_or_else(|error| CallToolResult::error(vec![ContentBlock::text(error.to_string())])))
        };
        unless_cancelled(&context, work).await.map(Into::into)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        unless_cancelled(&context, resources::list(&*self.routes, cursor)).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]).with_ttl_ms(TOOLS_FRESH_MS))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        unless_cancelled(&context, resources::read(&*self.routes, &request.uri)).await.map(Into::into)
    }
}

/// As much of a stranger's text as a message needs.
fn shown(text: &str) -> String {
    text.chars().take(100).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests;
