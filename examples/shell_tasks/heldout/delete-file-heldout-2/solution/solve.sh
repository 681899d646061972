#!/bin/bash
cd /workspace || exit 1
rm invoice.log
