Object.defineProperty(exports, "handler", { enumerable: true, get: () => async () => "by a getter" });
