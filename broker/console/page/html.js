// Markup for all modules: htm's templates, bound to preact.
import htm from "./vendor/htm.js";
import { Fragment, createContext, createElement, render } from "./vendor/preact.js";

export { Fragment, createContext, render };
export { useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(createElement);
