// Failures that their instance survives. `handler` runs the export that the event names.
const vm = require("vm");
class OrderError extends Error {}
class NamedError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "Named";
    this.code = "E_NAMED";
    this.details = { order: 17 };
  }
}
const circular = Object.assign(new Error("circular"), { name: "Circular" });
circular.self = circular;
const failing = (make) => async () => { throw make(); };

exports.error = failing(() => new Error("plain"));
exports.subclass = failing(() => new OrderError("of a class"));
exports.named = failing(() => new NamedError("with a name"));
exports.typeError = async (event) => event.missing.member;
exports.cause = failing(() => new Error("outer", { cause: new RangeError("inner") }));
exports.namedCause = failing(() => new NamedError("outer", { cause: "text" }));
exports.aggregate = failing(() => new AggregateError([new Error("one"), new Error("two")], "several"));
exports.any = async () => Promise.any([Promise.reject(new Error("one"))]);
exports.circular = failing(() => circular);
exports.emptyMessage = failing(() => new Error(""));
exports.noMessage = failing(() => new Error());
exports.lines = failing(() => new Error("first\nsecond\n\tthird"));
exports.unicode = failing(() => Object.assign(new Error("ä 😀"), { name: "Fehler ä" }));
exports.halfPair = failing(() => new Error("half \ud800"));
exports.delete = failing(() => new Error("delete \x7f"));
exports.noStack = failing(() => Object.assign(new Error("no stack"), { stack: undefined }));
exports.ownStack = failing(() => Object.assign(new Error("own stack"), { stack: "my own\n    at nowhere" }));
exports.emptyName = failing(() => Object.assign(new Error("no name"), { name: "" }));
exports.numericName = failing(() => Object.assign(new Error("numeric"), { name: 7 }));
exports.numericMessage = failing(() => Object.assign(new Error("x"), { message: 7 }));
exports.frozen = failing(() => Object.freeze(new OrderError("frozen")));
exports.textTag = failing(() => Object.assign(new Error("tagged"), { toString: () => "other text" }));
exports.getterThrows = failing(() => Object.defineProperty(new Error("x"), "message", { get() { throw new Error("in a getter"); } }));
exports.duck = failing(() => ({ name: "Duck", message: "like an error", stack: "Duck: like an error\n    at pond" }));
exports.otherRealm = failing(() => vm.runInNewContext("new TypeError('of another realm')"));
exports.domException = failing(() => new DOMException("aborted", "AbortError"));
exports.system = async () => require("fs").readFileSync("/nowhere");
exports.assertion = async () => require("assert").strictEqual(1, 2);
exports.json = async () => JSON.parse("{no json");
exports.string = failing(() => "a string");
exports.emptyString = failing(() => "");
exports.number = failing(() => 42);
exports.boolean = failing(() => false);
exports.bigint = failing(() => 1n);
exports.object = failing(() => ({ code: 1, toString: () => "its text" }));
exports.plainObject = failing(() => ({ code: 1 }));
exports.array = failing(() => [1, 2]);
exports.function = failing(() => function thrown() {});
exports.symbol = failing(() => Symbol("a"));
exports.prototypeless = failing(() => Object.create(null));
exports.null = failing(() => null);
exports.undefined = failing(() => undefined);
exports.sync = () => { throw new OrderError("synchronous"); };
exports.syncString = () => { throw "a string"; };
exports.syncNull = () => { throw null; };
exports.deep = async () => [1].map(function inner() { return (() => { throw new Error("deep"); })(); });
exports.afterAwait = async () => { await new Promise((resolve) => setTimeout(resolve, 1)); throw new Error("after an await"); };
exports.few = async () => {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    throw new Error("without frames");
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
};
exports.returnsError = () => Promise.reject(new OrderError("rejected"));
exports.callback = (event, context, callback) => callback(new OrderError("called back"));
exports.callbackString = (event, context, callback) => callback("a string");
exports.callbackObject = (event, context, callback) => callback({ message: "not an error" });
exports.callbackFalse = (event, context, callback) => callback(false, "result");
exports.callbackEmpty = (event, context, callback) => callback("", "result");
exports.callbackBoth = (event, context, callback) => callback(new Error("first"), "result");
exports.callbackLater = (event, context, callback) => { setTimeout(() => callback(new Error("later")), 5); };
exports.fail = (event, context) => context.fail(new OrderError("failed"));
exports.failString = (event, context) => context.fail("a string");
exports.failNothing = (event, context) => context.fail();
exports.failNull = (event, context) => context.fail(null);
exports.done = (event, context) => context.done(new Error("done"));
exports.doneString = (event, context) => context.done("a string");
exports.failAndSucceed = (event, context) => { context.fail(new Error("first")); context.succeed("second"); };
exports.handledRejection = async () => { const rejected = Promise.reject(new Error("handled")); await rejected.catch(() => {}); return "fine"; };
exports.handler = (event, context, callback) => exports[event.case](event.event, context, callback);
