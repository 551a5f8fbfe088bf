import { NotSupportedError } from "../../../hpke-common/src/errors.js";
export function emitNotSupported() {
    return new Promise((_resolve, reject) => {
        reject(new NotSupportedError("Not supported"));
    });
}
