// Results, in every style of a handler. One instance serves them all: `handler` runs the export that the event names.
class Point {
  #hidden = 1;
  constructor(x) {
    this.x = x;
  }
  get double() {
    return this.x * 2;
  }
}
const circular = { name: "circular" };
circular.self = circular;
const later = (take) => setTimeout(take, 5);

exports.undefined = async () => {};
exports.null = async () => null;
exports.zero = async () => 0;
exports.negativeZero = async () => -0;
exports.float = async () => 0.1 + 0.2;
exports.large = async () => 9007199254740993;
exports.nan = async () => NaN;
exports.infinity = async () => [Infinity, -Infinity];
exports.string = async () => "text";
exports.emptyString = async () => "";
exports.unicode = async () => "ä € 😀 \u2028 \u0000 \x7f";
exports.halfPair = async () => ({ half: "\ud800" });
exports.boolean = async () => [true, false];
exports.nested = async () => ({ a: [1, { b: [[], {}, null] }], c: { d: { e: "f" } } });
exports.order = async () => ({ z: 1, a: 2, 10: 3, 9: 4 });
exports.undefinedMembers = async () => ({ a: undefined, b: () => 1, c: Symbol("c"), d: [undefined, () => 1] });
exports.holes = async () => [1, , 3];
exports.date = async () => ({ date: new Date(0), invalid: new Date(NaN) });
exports.buffer = async () => Buffer.from("bytes");
exports.typedArray = async () => new Uint8Array([1, 2, 3]);
exports.mapAndSet = async () => [new Map([["a", 1]]), new Set([1]), new WeakMap()];
exports.toJson = async () => ({ toJSON: (key) => ({ key, replaced: true }) });
exports.toJsonUndefined = async () => ({ toJSON() {} });
exports.toJsonThrows = async () => ({ toJSON() { throw new RangeError("in toJSON"); } });
exports.instance = async () => new Point(21);
exports.boxed = async () => [new Number(1), new String("s"), new Boolean(false)];
exports.regex = async () => /a/g;
exports.errorAsValue = async () => Object.assign(new Error("a value"), { code: "E" });
exports.function = async () => () => 1;
exports.symbol = async () => Symbol("a");
exports.bigint = async () => ({ n: 1n });
exports.circular = async () => circular;
exports.prototypeless = async () => Object.assign(Object.create(null), { a: 1 });
exports.proxy = async () => new Proxy({ a: 1 }, {});
exports.getter = async () => ({ get a() { return 1; } });
exports.getterThrows = async () => ({ get a() { throw new Error("in a getter"); } });
exports.proto = async () => JSON.parse('{"__proto__": {"a": 1}}');
exports.megabyte = async () => "x".repeat(1 << 20);
exports.promiseInside = async () => ({ promise: Promise.resolve(1) });
exports.response = async () => ({ statusCode: 200, headers: { "X-A": "b" }, body: "text" });

exports.echo = async (event) => event;
exports.returnsPromise = () => Promise.resolve("promised");
exports.nestedPromise = async () => Promise.resolve(Promise.resolve("promised"));
exports.thenable = () => ({ then: (resolve, reject) => Promise.resolve("thenable").then(resolve, reject) });
exports.thenableFails = () => ({ then: (resolve, reject) => Promise.reject(new RangeError("thenable")).then(resolve, reject) });
exports.bareThenable = () => ({ then(resolve) { later(() => resolve("bare")); } });
exports.functionThenable = () => Object.assign(() => {}, { then: (resolve, reject) => Promise.resolve("function").then(resolve, reject) });
exports.nothing = () => {};
exports.nothingButTimer = () => { later(() => {}); };
exports.callback = (event, context, callback) => callback(null, "called");
exports.callbackLater = (event, context, callback) => { later(() => callback(null, "later")); };
exports.callbackUndefined = (event, context, callback) => callback();
exports.callbackOnlyResult = (event, context, callback) => callback(undefined, { a: 1 });
exports.callbackTwice = (event, context, callback) => { callback(null, "first"); callback(null, "second"); };
exports.callbackThenError = (event, context, callback) => { callback(null, "first"); callback(new Error("second")); };
exports.callbackAndPromise = async (event, context, callback) => { callback(null, "called"); return "returned"; };
exports.callbackAndThrow = (event, context, callback) => { callback(null, "called"); throw new Error("thrown after"); };
exports.promiseBeforeCallback = async (event, context, callback) => { later(() => callback(null, "late")); return "returned"; };
exports.waits = (event, context, callback) => {
  const state = { ran: false };
  callback(null, state);
  later(() => { state.ran = true; });
};
exports.doesNotWait = (event, context, callback) => {
  const state = { ran: false };
  context.callbackWaitsForEmptyEventLoop = false;
  callback(null, state);
  later(() => { state.ran = true; });
};
exports.waitsAgain = (event, context, callback) => {
  context.callbackWaitsForEmptyEventLoop = false;
  context.callbackWaitsForEmptyEventLoop = true;
  exports.waits(event, context, callback);
};
exports.callbackCircular = (event, context, callback) => { context.callbackWaitsForEmptyEventLoop = false; callback(null, circular); };
exports.succeed = (event, context) => context.succeed("succeeded");
exports.succeedLater = (event, context) => { later(() => context.succeed({ later: true })); };
exports.succeedNothing = (event, context) => context.succeed();
exports.succeedCircular = (event, context) => context.succeed(circular);
exports.done = (event, context) => context.done(null, "done");
exports.doneNothing = (event, context) => context.done();
exports.succeedAndFail = (event, context) => { context.succeed("first"); context.fail(new Error("second")); };
exports.succeedAsync = async (event, context) => { context.succeed("succeeded"); return "returned"; };
exports.emitters = async () => {
  const { EventEmitter, once } = require("events");
  const emitter = new EventEmitter();
  setImmediate(() => emitter.emit("done", 42));
  return (await once(emitter, "done"))[0];
};

exports.handler = (event, context, callback) => exports[event.case](event.event, context, callback);
