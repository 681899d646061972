#!/bin/bash
cd /workspace || exit 1
mkdir archive
