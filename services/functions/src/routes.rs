//! Routes: which function handles an HTTP request, in the terms of API Gateway's HTTP APIs.
//!
//! A route is a method, or any method, and a pattern of segments. `/orders/{id}` has one parameter,
//! and `/files/{path+}` takes the rest of the path. The most specific route that matches a request
//! gets it. Routes are compared segment by segment from the left: a literal comes before a
//! parameter, and a parameter before `{path+}`. Of two routes of the same shape, the one with a
//! named method comes first.
//!
//! Invariant: of two routes of the same shape in a table, whose parameters may have different
//! names, at most one takes a given method by name, and at most one takes any method.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use crate::cors::Cors;

/// The methods a route may name. A route without a method takes all of them.
pub const METHODS: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
/// The name for any method in the key of a route, as in API Gateway.
const ANY: &str = "ANY";
const SEGMENTS_MAX: usize = 32;
const PATTERN_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pattern: Pattern,
    /// None: any.
    method: Option<&'static str>,
    pub(crate) function: String,
}

/// The pattern of a route's paths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    /// Its shape.
    segments: Vec<Segment>,
    /// The names of its parameters, in order.
    names: Vec<String>,
}

/// A segment, in the order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Literal(String),
    /// Any segment but the empty one.
    Parameter,
    /// The rest of the path, which must not be empty.
    Greedy,
}

/// The function and the route of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// The function.
    pub function: String,
    /// The route as it is written: `GET /orders/{id}`.
    pub key: String,
    /// The values of the parameters in the path.
    pub parameters: BTreeMap<String, String>,
    /// The CORS settings of its application.
    pub cors: Option<Arc<Cors>>,
}

/// The result of looking for a request's route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteMatch {
    /// This route.
    Route(Routed),
    /// The path exists for these methods only.
    ForOthers(Vec<&'static str>),
    /// A matching route is deployed, but not in place yet.
    NotYet,
    /// No route.
    Nothing,
}

impl Route {
    /// The routes of `function` at `pattern`: one for each of `methods`, or one for any method.
    /// Errors: what to write instead.
    pub(crate) fn parse(
        function: &str,
        pattern: &str,
        methods: Option<&[String]>,
    ) -> Result<Vec<Self>, String> {
        let pattern = Pattern::parse(pattern)?;
        let route = |method| Self {
            pattern: pattern.clone(),
            method,
            function: function.to_owned(),
        };
        let Some(methods) = methods else {
            return Ok(vec![route(None)]);
        };
        if methods.is_empty() {
            return Err(
                "methods = [] must name at least one; without methods a route takes any".to_owned(),
            );
        }
        let known = |name: &String| match METHODS.into_iter().find(|known| known == name) {
            Some(method) => Ok(route(Some(method))),
            None => Err(format!(
                "methods: {name:?} must be one of {}, or left out for any",
                METHODS.join(", ")
            )),
        };
        methods.iter().map(known).collect()
    }

    /// Whether both have the same method and shape.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.method == other.method && self.pattern.segments == other.pattern.segments
    }

    /// Whether both have the same shape and some request matches both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let methods = self.method.zip(other.method);
        methods.is_none_or(|(one, another)| one == another)
            && self.pattern.segments == other.pattern.segments
    }

    fn takes(&self, method: &str) -> bool {
        match self.method {
            Some(own) => own == method,
            None => METHODS.contains(&method),
        }
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("http = {text:?} {why}");
        let path = text
            .strip_prefix('/')
            .ok_or_else(|| wrong("must begin with /"))?;
        if text.len() > PATTERN_BYTES_MAX {
            return Err(wrong(&format!(
                "must have {PATTERN_BYTES_MAX} bytes at most"
            )));
        }
        let parts: Option<Vec<_>> = path.split('/').map(Segment::parse).collect();
        let parts = parts.ok_or_else(|| {
            wrong(
                "must consist of segments that are letters, digits and -._~:@$, or {name}, or at the end {name+}, \
                 whose names are letters, digits, _ and -",
            )
        })?;
        let (segments, names): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        if segments.len() > SEGMENTS_MAX {
            return Err(wrong(&format!("must have {SEGMENTS_MAX} segments at most")));
        }
        if segments.len() > 1 && segments.contains(&Segment::Literal(String::new())) {
            return Err(wrong("must have no empty segment"));
        }
        if segments[..segments.len() - 1].contains(&Segment::Greedy) {
            return Err(wrong("must have {name+} at its end only"));
        }
        let names: Vec<_> = names.into_iter().flatten().map(str::to_owned).collect();
        if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            return Err(wrong("must name each parameter differently"));
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
            names,
        })
    }

    fn matches(&self, path: &[String]) -> bool {
        let is_long_enough = match self.segments.last() {
            Some(Segment::Greedy) => path.len() >= self.segments.len(),
            _ => path.len() == self.segments.len(),
        };
        let fits = |(segment, found): (&Segment, &String)| match segment {
            Segment::Literal(text) => text == found,
            Segment::Parameter | Segment::Greedy => !found.is_empty(),
        };
        is_long_enough && self.segments.iter().zip(path).all(fits)
    }

    /// The parameters' values in a path that [matches](Self::matches).
    fn parameters(&self, path: &[String]) -> BTreeMap<String, String> {
        let segments = self.segments.iter().enumerate();
        let values = segments.filter_map(|(place, segment)| match segment {
            Segment::Literal(_) => None,
            Segment::Parameter => Some(path[place].clone()),
            Segment::Greedy => Some(path[place..].join("/")),
        });
        self.names.iter().cloned().zip(values).collect()
    }
}

impl Segment {
    /// A segment, and the name of a parameter.
    fn parse(text: &str) -> Option<(Self, Option<&str>)> {
        let is_name = |name: &str| {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            !name.is_empty() && name.bytes().all(is_good)
        };
        let inner = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        if let Some(inner) = inner {
            let (segment, name) = match inner.strip_suffix('+') {
                Some(name) => (Self::Greedy, name),
                None => (Self::Parameter, inner),
            };
            return is_name(name).then_some((segment, Some(name)));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@$".contains(&byte);
        // Clients remove these two from a path before they send it.
        let is_literal = text.bytes().all(is_plain) && !matches!(text, "." | "..");
        is_literal.then(|| (Self::Literal(text.to_owned()), None))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} {}",
            self.method.unwrap_or(ANY),
            self.pattern.text
        )
    }
}

/// The routes of all applications, the most specific one first.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    routes: Vec<OwnedRoute>,
}

#[derive(Debug)]
struct OwnedRoute {
    application: String,
    cors: Option<Arc<Cors>>,
    route: Route,
}

impl RouteTable {
    pub(crate) fn replace(
        &mut self,
        application: &str,
        routes: Vec<Route>,
        cors: Option<&Arc<Cors>>,
    ) {
        self.routes.retain(|owned| owned.application != application);
        let owned = |route| OwnedRoute {
            application: application.to_owned(),
            cors: cors.cloned(),
            route,
        };
        self.routes.extend(routes.into_iter().map(owned));
        self.routes
            .sort_by(|one, another| one.rank().cmp(&another.rank()));
    }

    /// The first of `routes` that overlaps with another application's route, with that application
    /// and its route.
    pub(crate) fn claimed<'a>(
        &'a self,
        application: &str,
        routes: &'a [Route],
    ) -> Option<(&'a Route, &'a str, &'a Route)> {
        let others = || {
            self.routes
                .iter()
                .filter(|owned| owned.application != application)
        };
        routes.iter().find_map(|route| {
            let owned = others().find(|owned| owned.route.overlaps(route))?;
            Some((route, &*owned.application, &owned.route))
        })
    }

    /// The route for a request with `method` to a path of these decoded segments.
    pub(crate) fn find(&self, method: &str, path: &[String]) -> RouteMatch {
        let mut others = Vec::new();
        for OwnedRoute { route, cors, .. } in self.matching(path) {
            if route.takes(method) {
                let (function, key) = (route.function.clone(), route.to_string());
                return RouteMatch::Route(Routed {
                    function,
                    key,
                    parameters: route.pattern.parameters(path),
                    cors: cors.clone(),
                });
            }
            match route.method {
                Some(other) => others.push(other),
                None => others.extend(METHODS),
            }
        }
        if others.is_empty() {
            return RouteMatch::Nothing;
        }
        others.sort_unstable();
        others.dedup();
        RouteMatch::ForOthers(others)
    }

    /// The CORS settings for a preflight request that asks about `method`: those of the route that
    /// takes it. If none does, those of the most specific route for the path.
    pub(crate) fn cors(&self, method: &str, path: &[String]) -> Option<Arc<Cors>> {
        let owned = self.matching(path).find(|owned| owned.route.takes(method));
        owned.or_else(|| self.matching(path).next())?.cors.clone()
    }

    /// The routes for a path, the most specific one first.
    fn matching(&self, path: &[String]) -> impl Iterator<Item = &OwnedRoute> {
        let matches = |owned: &&OwnedRoute| owned.route.pattern.matches(path);
        self.routes.iter().filter(matches)
    }
}

impl OwnedRoute {
    /// Its order in the table. The owner decides where two processes have deployed the same route
    /// on one store.
    fn rank(&self) -> (&[Segment], bool, &str) {
        (
            &self.route.pattern.segments,
            self.route.method.is_none(),
            &self.application,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&str, Option<&[&str]>)]) -> RouteTable {
        let mut table = RouteTable::default();
        let parsed = routes.iter().flat_map(|(pattern, methods)| {
            let methods =
                methods.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
            Route::parse("f", pattern, methods.as_deref()).expect("a route")
        });
        table.replace("app", parsed.collect(), None);
        table
    }

    fn found(table: &RouteTable, method: &str, path: &str) -> String {
        let segments: Vec<_> = path[1..].split('/').map(str::to_owned).collect();
        match table.find(method, &segments) {
            RouteMatch::Route(Routed {
                key, parameters, ..
            }) => {
                let parameters: Vec<_> = parameters
                    .iter()
                    .map(|(name, value)| format!(" {name}={value}"))
                    .collect();
                [key, parameters.concat()].concat()
            }
            RouteMatch::ForOthers(methods) => format!("only {}", methods.join(" ")),
            RouteMatch::NotYet => "nothing yet".to_owned(),
            RouteMatch::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn the_most_specific_route_that_takes_the_method_gets_a_request() {
        let table = table(&[
            ("/{all+}", None),
            ("/orders/{id}", Some(&["GET", "PUT"])),
            ("/orders/{id}", None),
            ("/orders/new", Some(&["GET"])),
            ("/orders/{id}/{rest+}", Some(&["GET"])),
            ("/{kind}/new/{part}", Some(&["GET"])),
            ("/", Some(&["GET"])),
        ]);
        for (method, path, expected) in [
            ("GET", "/orders/new", "GET /orders/new"),
            ("PUT", "/orders/new", "PUT /orders/{id} id=new"),
            ("POST", "/orders/7", "ANY /orders/{id} id=7"),
            (
                "GET",
                "/orders/7/a/b",
                "GET /orders/{id}/{rest+} id=7 rest=a/b",
            ),
            (
                "GET",
                "/orders/new/x",
                "GET /orders/{id}/{rest+} id=new rest=x",
            ),
            (
                "GET",
                "/bills/new/x",
                "GET /{kind}/new/{part} kind=bills part=x",
            ),
            ("POST", "/orders/7/a", "ANY /{all+} all=orders/7/a"),
            ("GET", "/orders/", "ANY /{all+} all=orders/"),
            ("GET", "/", "GET /"),
            ("POST", "/", "only GET"),
            ("TRACE", "/a", "only DELETE GET HEAD OPTIONS PATCH POST PUT"),
            ("GET", "//a", "nothing"),
        ] {
            assert_eq!(found(&table, method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_parameter_is_one_segment_and_never_an_empty_one() {
        let table = table(&[
            ("/orders/{id}", Some(&["GET"])),
            ("/files/{path+}", Some(&["GET"])),
        ]);
        for (path, expected) in [
            ("/orders/7", "GET /orders/{id} id=7"),
            ("/orders/", "nothing"),
            ("/orders", "nothing"),
            ("/orders/7/", "nothing"),
            ("/Orders/7", "nothing"),
            ("/files/a", "GET /files/{path+} path=a"),
            ("/files/a//b/", "GET /files/{path+} path=a//b/"),
            ("/files/", "nothing"),
            ("/files", "nothing"),
        ] {
            assert_eq!(found(&table, "GET", path), expected, "{path}");
        }
        assert_eq!(found(&table, "POST", "/orders/7"), "only GET");
    }

    #[test]
    fn an_invalid_route_is_refused_with_a_hint() {
        let long = ["/x".repeat(33), "/".to_owned() + &"x".repeat(512)];
        for (pattern, methods, said) in [
            ("orders", None, "begin with /"),
            ("/a//b", None, "no empty segment"),
            ("/a/", None, "no empty segment"),
            ("/{all+}/x", None, "at its end only"),
            ("/{id}/{id}", None, "name each parameter differently"),
            ("/a%20b", None, "letters, digits"),
            ("/a/{}", None, "letters, digits"),
            ("/a/{b", None, "letters, digits"),
            ("/a/..", None, "letters, digits"),
            ("/x{id}", None, "letters, digits"),
            (&long[0], None, "32 segments at most"),
            (&long[1], None, "512 bytes at most"),
            ("/a", Some("get"), "\"get\" must be one of DELETE, GET"),
            ("/a", Some("CONNECT"), "must be one of"),
            ("/a", Some("ANY"), "methods: \"ANY\" must be one of"),
        ] {
            let methods = methods.map(|name| vec![name.to_owned()]);
            let refused = Route::parse("f", pattern, methods.as_deref()).expect_err(pattern);
            assert!(refused.contains(said), "{pattern}: {refused}");
        }
        assert!(
            Route::parse("f", "/a", Some(&[]))
                .expect_err("none")
                .contains("name at least one")
        );
    }

    #[test]
    fn a_route_belongs_to_one_application_and_goes_with_it() {
        let mut table = table(&[("/orders/{id}", Some(&["GET"])), ("/any", None)]);
        let parsed = |pattern: &str, method: &str| {
            Route::parse("g", pattern, Some(&[method.to_owned()])).expect("a route")
        };
        let claimed = |table: &RouteTable, routes: &[Route]| {
            table
                .claimed("other", routes)
                .map(|(own, owner, theirs)| format!("{own} is {owner}'s {theirs}"))
        };
        let same = parsed("/orders/{order}", "GET");
        assert_eq!(
            claimed(&table, &same).as_deref(),
            Some("GET /orders/{order} is app's GET /orders/{id}")
        );
        assert_eq!(
            claimed(&table, &parsed("/any", "GET")).as_deref(),
            Some("GET /any is app's ANY /any")
        );
        assert_eq!(claimed(&table, &parsed("/orders/{id}", "PUT")), None);
        assert_eq!(claimed(&table, &parsed("/orders/new", "GET")), None);
        assert!(
            table.claimed("app", &same).is_none(),
            "it may have its own again"
        );
        table.replace("app", Vec::new(), None);
        assert_eq!(claimed(&table, &same), None);
        assert_eq!(found(&table, "GET", "/orders/7"), "nothing");
    }

    /// A preflight request asks about another method, whose route decides.
    #[test]
    fn a_preflight_request_is_of_the_application_whose_route_takes_its_method() {
        let route = |pattern: &str, methods: Option<&[String]>| {
            Route::parse("f", pattern, methods).expect("a route")
        };
        let cors = |origin: &str| {
            Some(Arc::new(Cors {
                allow_origins: vec![origin.to_owned()],
                ..Cors::default()
            }))
        };
        let (one, get) = (cors("http://one"), ["GET".to_owned()]);
        let mut table = RouteTable::default();
        table.replace("one", route("/orders/{id}", Some(&get)), one.as_ref());
        table.replace("without", route("/{all+}", None), None);
        let found = |table: &RouteTable, method: &str, path: &str| {
            let segments: Vec<_> = path[1..].split('/').map(str::to_owned).collect();
            table.cors(method, &segments)
        };
        assert_eq!(found(&table, "GET", "/orders/7"), one);
        assert_eq!(found(&table, "PUT", "/orders/7"), None, "it is without's");
        assert_eq!(found(&table, "GET", "/other"), None);
        table.replace("without", Vec::new(), None);
        assert_eq!(found(&table, "PUT", "/orders/7"), one, "no other route");
        table.replace("one", route("/orders/{id}", Some(&get)), None);
        assert_eq!(found(&table, "GET", "/orders/7"), None);
    }
}
