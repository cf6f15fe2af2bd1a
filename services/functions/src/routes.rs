//! Routes: which function a request over HTTP is for, in the words of API Gateway's HTTP APIs.
//!
//! A route is a method, or any, and a pattern of segments: `/orders/{id}` has one parameter, `/files/{path+}` takes all that
//! follows. Of the routes that take a request's method and path the most specific one gets it: compared segment by segment
//! from the left, a literal comes before a parameter, that before `{path+}`; of two that are alike, a named method before any.
//!
//! Invariant: of two routes of a table that are alike (the same shape, whatever their parameters are called), at most one
//! takes a method by its name and at most one takes any.

use std::{collections::BTreeMap, fmt};

/// What a route may name; without a name it takes all of these.
pub const METHODS: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
/// What stands for any method, as API Gateway has it.
const ANY: &str = "ANY";
/// Segments of a pattern.
const SEGMENTS_MAX: usize = 32;
/// The longest pattern.
const PATTERN_BYTES_MAX: usize = 512;

/// One route of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pattern: Pattern,
    /// None: any.
    method: Option<&'static str>,
    function: String,
}

/// What the paths of a route look like.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Any segment but the empty one.
    Parameter(String),
    /// All that follows, if there is anything.
    Greedy(String),
}

/// What a segment is worth beside others in its place; the names of parameters do not count.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shape<'a> {
    Literal(&'a str),
    Parameter,
    Greedy,
}

/// A request's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// The function.
    pub function: String,
    /// The route as it is written: `GET /orders/{id}`.
    pub key: String,
    /// What the path has in place of the parameters.
    pub parameters: BTreeMap<String, String>,
}

/// What there is for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This.
    Route(Routed),
    /// Its path is there, for these methods only.
    ForOthers(Vec<&'static str>),
    /// Nothing yet: a route that takes it is deployed and not in place.
    NotYet,
    /// Nothing.
    Nothing,
}

impl Route {
    /// The routes of `function` at `pattern`: one for each of `methods`, or one for any. Errors: what would be right.
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
                "methods = [] is to name one at least; without methods a route takes any"
                    .to_owned(),
            );
        }
        let known = |name: &String| match METHODS.into_iter().find(|known| known == name) {
            Some(method) => Ok(route(Some(method))),
            None if name == ANY => Ok(route(None)),
            None => Err(format!(
                "methods: {name:?} is to be {ANY} or one of {}",
                METHODS.join(", ")
            )),
        };
        methods.iter().map(known).collect()
    }

    pub(crate) fn function(&self) -> &str {
        &self.function
    }

    /// Whether they are alike, method included.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.method == other.method && self.pattern.shape().eq(other.pattern.shape())
    }

    /// Whether they are alike and some request is for both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let methods = self.method.zip(other.method);
        methods.is_none_or(|(one, another)| one == another)
            && self.pattern.shape().eq(other.pattern.shape())
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
            .ok_or_else(|| wrong("is to begin with /"))?;
        if text.len() > PATTERN_BYTES_MAX {
            return Err(wrong(&format!(
                "is to have {PATTERN_BYTES_MAX} bytes at most"
            )));
        }
        let segments: Vec<_> = path.split('/').map(Segment::parse).collect::<Option<_>>().ok_or_else(|| {
            wrong(
                "is to be of segments that are letters, digits and -._~:@$, or {name}, or at the end {name+}, \
                 whose names are letters, digits, _ and -",
            )
        })?;
        if segments.len() > SEGMENTS_MAX {
            return Err(wrong(&format!(
                "is to have {SEGMENTS_MAX} segments at most"
            )));
        }
        if segments.len() > 1 && segments.contains(&Segment::Literal(String::new())) {
            return Err(wrong("is to have no empty segment"));
        }
        let (_, before) = segments
            .split_last()
            .expect("split gives one part at least");
        if before
            .iter()
            .any(|segment| matches!(segment, Segment::Greedy(_)))
        {
            return Err(wrong("is to have {name+} at its end only"));
        }
        let mut names: Vec<_> = segments.iter().filter_map(Segment::name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(wrong("is to name each parameter differently"));
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }

    fn shape(&self) -> impl Iterator<Item = Shape<'_>> {
        self.segments.iter().map(|segment| match segment {
            Segment::Literal(text) => Shape::Literal(text),
            Segment::Parameter(_) => Shape::Parameter,
            Segment::Greedy(_) => Shape::Greedy,
        })
    }

    /// Whether a path of these segments looks like this.
    fn matches(&self, path: &[String]) -> bool {
        let is_long_enough = match self.segments.last() {
            Some(Segment::Greedy(_)) => path.len() >= self.segments.len(),
            _ => path.len() == self.segments.len(),
        };
        let fits = |(segment, found): (&Segment, &String)| match segment {
            Segment::Literal(text) => text == found,
            Segment::Parameter(_) | Segment::Greedy(_) => !found.is_empty(),
        };
        is_long_enough && self.segments.iter().zip(path).all(fits)
    }

    /// What a path that [matches](Self::matches) has in place of the parameters.
    fn parameters(&self, path: &[String]) -> BTreeMap<String, String> {
        let named = self
            .segments
            .iter()
            .enumerate()
            .filter_map(|(place, segment)| match segment {
                Segment::Literal(_) => None,
                Segment::Parameter(name) => Some((name.clone(), path[place].clone())),
                Segment::Greedy(name) => Some((name.clone(), path[place..].join("/"))),
            });
        named.collect()
    }
}

impl Segment {
    fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &str| {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            !name.is_empty() && name.bytes().all(is_good)
        };
        if let Some(inner) = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
        {
            return match inner.strip_suffix('+') {
                Some(name) => is_name(name).then(|| Self::Greedy(name.to_owned())),
                None => is_name(inner).then(|| Self::Parameter(inner.to_owned())),
            };
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@$".contains(&byte);
        // A client takes these two out of a path before it sends that.
        let is_literal = text.bytes().all(is_plain) && !matches!(text, "." | "..");
        is_literal.then(|| Self::Literal(text.to_owned()))
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Parameter(name) | Self::Greedy(name) => Some(name),
        }
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
pub(crate) struct Table {
    routes: Vec<Owned>,
}

#[derive(Debug)]
struct Owned {
    application: String,
    route: Route,
}

impl Table {
    /// Makes `routes` all that `application` has.
    pub(crate) fn replace(&mut self, application: &str, routes: Vec<Route>) {
        self.routes.retain(|owned| owned.application != application);
        let owned = |route| Owned {
            application: application.to_owned(),
            route,
        };
        self.routes.extend(routes.into_iter().map(owned));
        self.routes
            .sort_by(|one, another| one.rank().cmp(&another.rank()));
    }

    /// The first of `routes` that another application than `application` has, with that one and what it has.
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

    /// What there is for a request with `method` to a path of these segments, decoded.
    pub(crate) fn find(&self, method: &str, path: &[String]) -> Found {
        let mut others = Vec::new();
        for Owned { route, .. } in self
            .routes
            .iter()
            .filter(|owned| owned.route.pattern.matches(path))
        {
            if route.takes(method) {
                let (function, key) = (route.function.clone(), route.to_string());
                return Found::Route(Routed {
                    function,
                    key,
                    parameters: route.pattern.parameters(path),
                });
            }
            match route.method {
                Some(other) => others.push(other),
                None => others.extend(METHODS),
            }
        }
        if others.is_empty() {
            return Found::Nothing;
        }
        others.sort_unstable();
        others.dedup();
        Found::ForOthers(others)
    }
}

impl Owned {
    /// Its place in the table. The owner counts where two processes have deployed one route on one store.
    fn rank(&self) -> (Vec<Shape<'_>>, bool, &str) {
        (
            self.route.pattern.shape().collect(),
            self.route.method.is_none(),
            &self.application,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&str, Option<&[&str]>)]) -> Table {
        let mut table = Table::default();
        let parsed = routes.iter().flat_map(|(pattern, methods)| {
            let methods =
                methods.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
            Route::parse("f", pattern, methods.as_deref()).expect("a route")
        });
        table.replace("app", parsed.collect());
        table
    }

    fn found(table: &Table, method: &str, path: &str) -> String {
        let segments: Vec<_> = path[1..].split('/').map(str::to_owned).collect();
        match table.find(method, &segments) {
            Found::Route(Routed {
                key, parameters, ..
            }) => {
                let parameters: Vec<_> = parameters
                    .iter()
                    .map(|(name, value)| format!(" {name}={value}"))
                    .collect();
                [key, parameters.concat()].concat()
            }
            Found::ForOthers(methods) => format!("only {}", methods.join(" ")),
            Found::NotYet => "nothing yet".to_owned(),
            Found::Nothing => "nothing".to_owned(),
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
    fn a_route_that_cannot_be_is_refused_with_what_would_be_right() {
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
            (
                "/a",
                Some("get"),
                "\"get\" is to be ANY or one of DELETE, GET",
            ),
            ("/a", Some("CONNECT"), "is to be ANY or one of"),
        ] {
            let methods = methods.map(|name| vec![name.to_owned()]);
            let refused = Route::parse("f", pattern, methods.as_deref()).expect_err(pattern);
            assert!(refused.contains(said), "{pattern}: {refused}");
        }
        assert!(
            Route::parse("f", "/a", Some(&[]))
                .expect_err("none")
                .contains("name one at least")
        );
    }

    #[test]
    fn a_route_is_one_applications_and_goes_with_it() {
        let mut table = table(&[("/orders/{id}", Some(&["GET"])), ("/any", None)]);
        let parsed = |pattern: &str, method: &str| {
            Route::parse("g", pattern, Some(&[method.to_owned()])).expect("a route")
        };
        let claimed = |table: &Table, routes: &[Route]| {
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
        table.replace("app", Vec::new());
        assert_eq!(claimed(&table, &same), None);
        assert_eq!(found(&table, "GET", "/orders/7"), "nothing");
    }
}
