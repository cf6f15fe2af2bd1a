//! The addresses of the servers, and the choice of the next one.
//!
//! Any node takes any call. A client therefore stays with one node as long as it responds, and
//! moves on at the first sign that it does not. A transaction stays with the node that began it,
//! because every other node would have to forward its calls.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Uri, uri::Scheme};

use crate::error::{Error, ErrorKind, Result};

/// A server's default address.
pub const URL_DEFAULT: &str = "http://127.0.0.1:7600";
/// The most servers that a client accepts.
pub const NODES_MAX: usize = 64;

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) is_tls: bool,
    /// `HOST:PORT`.
    pub(crate) authority: String,
}

/// The addresses.
pub(crate) fn parse<I>(urls: I) -> Result<Arc<[Address]>>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let urls = urls.into_iter().take(NODES_MAX + 1);
    let nodes = urls.map(|url| address(url.as_ref().trim()));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        let detail = format!("between 1 and {NODES_MAX} URLs are needed, such as {URL_DEFAULT}");
        return Err(Error::new(ErrorKind::InvalidRequest, "connect", detail));
    }
    Ok(nodes.into())
}

fn address(url: &str) -> Result<Address> {
    let refuse = |why: &str| {
        let (what, why) = (
            format!("connect to {url:?}"),
            format!("{why}; write it like {URL_DEFAULT}"),
        );
        Error::new(ErrorKind::InvalidRequest, what, why)
    };
    let no_url = || refuse("it is not the URL of a server");
    let uri: Uri = url.parse().map_err(|_| no_url())?;
    let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
    let is_http = is_tls || uri.scheme() == Some(&Scheme::HTTP);
    let is_plain = is_http && uri.path() == "/" && uri.query().is_none();
    let authority = uri.authority().filter(|_| is_plain).ok_or_else(no_url)?;
    let authority = match (authority.port_u16(), authority.host()) {
        (_, "") => return Err(no_url()),
        (Some(port), host) if authority.as_str() == format!("{host}:{port}") => {
            format!("{host}:{port}")
        }
        (None, host) if authority.as_str() == host => {
            format!("{host}:{}", if is_tls { 443 } else { 80 })
        }
        _ => return Err(no_url()),
    };
    Ok(Address { is_tls, authority })
}

/// The node for the next request. Moving on is idempotent: two tasks that lose one node move one
/// step.
#[derive(Debug)]
pub(crate) struct Route {
    nodes: usize,
    next: AtomicUsize,
    origin: Option<Arc<Self>>,
}

impl Route {
    pub(crate) fn over(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            next: AtomicUsize::new(0),
            origin: None,
        })
    }

    /// A route of its own that begins at this one's node, and moves this one along when it leaves a
    /// node.
    pub(crate) fn branch(self: &Arc<Self>) -> Arc<Self> {
        let next = AtomicUsize::new(self.node());
        Arc::new(Self {
            nodes: self.nodes,
            next,
            origin: Some(Arc::clone(self)),
        })
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    pub(crate) fn node(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// Moves on, if `node` is still the current one.
    pub(crate) fn leave(&self, node: usize) {
        let next = (node + 1) % self.nodes;
        // The second task finds that the first has moved on already.
        let order = Ordering::Relaxed;
        let _ = self.next.compare_exchange(node, next, order, order);
        if let Some(origin) = &self.origin {
            origin.leave(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_plain_url_of_a_server() {
        let nodes = parse([
            "http://127.0.0.1:7600",
            " http://[::1]:7601/",
            "http://state.example",
            "https://state.example",
            "https://127.0.0.1:1",
        ]);
        let nodes = nodes.expect("addresses");
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| (node.is_tls, &*node.authority))
            .collect();
        assert_eq!(
            nodes,
            [
                (false, "127.0.0.1:7600"),
                (false, "[::1]:7601"),
                (false, "state.example:80"),
                (true, "state.example:443"),
                (true, "127.0.0.1:1"),
            ]
        );
        for bad in [
            "",
            "127.0.0.1:7600",
            "https://",
            "http://",
            "http://a/v1",
            "http://a/?b",
            "http://u@a",
            "http://a:x",
            "redis://a",
        ] {
            let error = parse([bad]).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().contains(URL_DEFAULT), "{error}");
        }
        parse::<[&str; 0]>([]).expect_err("there is none");
        parse(["http://a"; NODES_MAX + 1]).expect_err("there are too many");
    }

    #[test]
    fn who_leaves_a_node_that_was_left_moves_nobody() {
        let client = Route::over(3);
        let (one, other) = (client.branch(), client.branch());
        one.leave(0);
        other.leave(0);
        assert_eq!((client.node(), one.node(), other.node()), (1, 1, 1));
        one.leave(1);
        other.leave(0);
        assert_eq!((client.node(), one.node(), other.node()), (2, 2, 1));
        one.leave(2);
        assert_eq!(client.node(), 0);
    }
}
